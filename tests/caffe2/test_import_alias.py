"""Scripts run with caffe2 as an alias of the compatibility layer: as Python runs them, and in child processes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from house import ROOT
from netbuilder.caffe2.import_alias import CHILDREN, ROOT_VARIABLE, install_alias


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", ROOT_VARIABLE)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def python(*arguments, cwd, **more):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment(**more), capture_output=True, text=True
    )


def run_with_alias(*arguments, cwd, **more):
    return python("-m", "netbuilder.caffe2", *arguments, cwd=cwd, **more)


def printed(run):
    assert run.returncode == 0, run.stderr
    return run.stdout


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


class TestAlias:
    def test_both_names_give_the_same_modules(self, tmp_path):
        script = write(
            tmp_path / "script.py",
            """
            import caffe2
            import caffe2.python.core
            import caffe2.python.modeling.initializers as one
            import netbuilder.caffe2.python.modeling.initializers as other
            import netbuilder.caffe2.python.core as core
            from caffe2.proto import caffe2_pb2
            from netbuilder.proto import NetDef

            assert one is other and caffe2.python.core is core and caffe2_pb2.NetDef is NetDef
            print(core.__name__, core.__spec__.name, caffe2.__spec__.name, caffe2.python.__spec__.name)
            """,
        )
        want = "netbuilder.caffe2.python.core " * 2 + "netbuilder.caffe2 netbuilder.caffe2.python\n"
        assert printed(run_with_alias(script, cwd=tmp_path)) == want

    def test_a_script_that_asks_for_an_old_parser_of_protobuf_gets_the_one_there_is(self, tmp_path):
        code = (
            "import os; os.environ['PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION'] = 'cpp'\n"
            "from caffe2.proto import caffe2_pb2, metanet_pb2\n"
            "meta = metanet_pb2.MetaNetDef()\n"
            "meta.nets.add(key='one', value=caffe2_pb2.NetDef(name='net'))\n"
            "print(meta.nets[0].value.name)"
        )
        assert printed(run_with_alias("-c", code, cwd=tmp_path)) == "net\n"

    def test_twice_is_as_good_as_once(self):
        before = list(sys.meta_path)
        install_alias(children=False)
        once = list(sys.meta_path)
        install_alias(children=False)
        assert sys.meta_path == once and len(once) - len(before) in (0, 1)
        assert "PYTHONPATH" not in os.environ or CHILDREN not in os.environ["PYTHONPATH"]

    def test_another_caffe2_that_is_there_already_is_refused(self, tmp_path):
        write(tmp_path / "caffe2" / "__init__.py", "")
        code = "import caffe2; from netbuilder.caffe2 import install_alias; install_alias()"
        run = python("-c", code, cwd=tmp_path)
        assert (
            "caffe2 has already been imported from" in run.stderr and "call install_alias() before that" in run.stderr
        )

    def test_it_goes_before_another_caffe2_on_the_path(self, tmp_path):
        write(tmp_path / "caffe2" / "__init__.py", "raise RuntimeError('the other one')")
        script = write(tmp_path / "script.py", "import caffe2; print(caffe2.__name__)")
        assert printed(run_with_alias(script, cwd=tmp_path)) == "netbuilder.caffe2\n"


FACTS = """
    '''Says what it was started with.'''
    import json
    import sys

    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "package": __package__,
        "spec": getattr(__spec__, "name", None), "doc": __doc__, "builtins": type(__builtins__).__name__,
        "main": sys.modules["__main__"].__dict__ is globals(), "loader": type(__loader__).__name__,
    }))
    """


class TestAsPythonRuns:
    def test_a_script(self, tmp_path):
        script = write(tmp_path / "below" / "facts.py", FACTS)
        arguments = ["below/facts.py", "one", "--two", "-m"]
        ours = json.loads(printed(run_with_alias(*arguments, cwd=tmp_path)))
        assert ours == json.loads(printed(python(*arguments, cwd=tmp_path)))
        assert ours["path"] == str(script.parent) and ours["argv"] == arguments

    def test_a_script_run_by_a_link(self, tmp_path):
        write(tmp_path / "real" / "facts.py", FACTS)
        (tmp_path / "link.py").symlink_to(tmp_path / "real" / "facts.py")
        ours = json.loads(printed(run_with_alias("link.py", cwd=tmp_path)))
        assert ours == json.loads(printed(python("link.py", cwd=tmp_path)))

    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("module", ["facts", "package", "package.inner"])
    def test_a_module(self, tmp_path, module):
        write(tmp_path / "facts.py", FACTS)
        write(tmp_path / "package" / "__init__.py", "")
        write(tmp_path / "package" / "__main__.py", FACTS)
        write(tmp_path / "package" / "inner.py", FACTS)
        ours = json.loads(printed(run_with_alias("-m", module, "argument", cwd=tmp_path)))
        assert ours == json.loads(printed(python("-m", module, "argument", cwd=tmp_path)))

    def test_a_piece_of_code(self, tmp_path):
        code = "import sys; from caffe2.python import core; print(sys.argv, __name__, core.Net('a'))"
        assert printed(run_with_alias("-c", code, "x", cwd=tmp_path)) == "['-c', 'x'] __main__ a\n"

    def test_a_module_of_caffe2s(self, tmp_path):
        assert printed(run_with_alias("-m", "caffe2.python.scope", cwd=tmp_path)) == ""

    def test_exit_codes_and_errors(self, tmp_path):
        script = write(tmp_path / "ends.py", "import sys; sys.exit(7)")
        assert run_with_alias(script, cwd=tmp_path).returncode == 7
        script = write(tmp_path / "raises.py", "def f():\n    raise KeyError('lost')\nf()\n")
        run = run_with_alias(script, cwd=tmp_path)
        assert run.returncode == 1 and run.stderr.endswith("KeyError: 'lost'\n")
        assert f'File "{script}", line 2, in f' in run.stderr

    def test_wrong_command_lines(self, tmp_path):
        for arguments, code, text in (
            ([], 2, "usage: python -m netbuilder.caffe2 SCRIPT"),
            (["-m"], 2, "usage:"),
            (["-z"], 2, "unknown option -z"),
            (["nowhere.py"], 2, "can't open file 'nowhere.py': No such file or directory"),
            (["-m", "nowhere"], 1, "there is no module nowhere, or it cannot be run"),
            (["-m", "nowhere.at.all"], 1, "No module named 'nowhere'"),
        ):
            run = run_with_alias(*arguments, cwd=tmp_path)
            assert (run.returncode, text in run.stderr) == (code, True), (arguments, run.stderr)
        assert printed(run_with_alias("--help", cwd=tmp_path)).startswith("usage:")

    def test_the_source_line_of_an_operator_is_the_scripts(self, tmp_path):
        script = write(
            tmp_path / "net.py",
            """
            from caffe2.python import core
            net = core.Net("n")
            net.Relu("x", "y")
            print(net.Proto().op[0].debug_info)""",
        )
        assert printed(run_with_alias(script, cwd=tmp_path)) == "net.py:4 in <module>\n"


CHILD = "from caffe2.python import core; print(core.__name__, flush=True)"


class TestChildren:
    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
    def test_processes(self, tmp_path, method):
        script = write(
            tmp_path / "parent.py",
            f"""
            import multiprocessing

            from caffe2.python import core, workspace


            def child(queue):
                from caffe2.python import core as here

                workspace.FeedBlob("x", workspace.np.float32([-1, 2]))
                workspace.RunOperatorOnce(core.CreateOperator("Relu", ["x"], ["y"]))
                queue.put((here.__name__, here is core, workspace.FetchBlob("y").tolist()))


            if __name__ == "__main__":
                context = multiprocessing.get_context({method!r})
                queue = context.Queue()
                process = context.Process(target=child, args=(queue,))
                process.start()
                print(queue.get(timeout=300))
                process.join()
            """,
        )
        assert printed(run_with_alias(script, cwd=tmp_path)) == "('netbuilder.caffe2.python.core', True, [0.0, 2.0])\n"

    @pytest.mark.slow
    def test_a_module_run_by_name_spawns(self, tmp_path):
        write(tmp_path / "package" / "__init__.py", "")
        write(
            tmp_path / "package" / "parent.py",
            """
            import multiprocessing

            from caffe2.python import core


            def name(_):
                return core.__name__


            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(pool.map(name, [0]))
            """,
        )
        assert printed(run_with_alias("-m", "package.parent", cwd=tmp_path)) == "['netbuilder.caffe2.python.core']\n"

    def test_commands_and_their_children(self, tmp_path):
        write(tmp_path / "child.py", CHILD)
        grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"
        script = write(
            tmp_path / "parent.py",
            f"""
            import subprocess
            import sys

            for command in (["child.py"], ["-c", {grandchild!r}]):
                subprocess.run([sys.executable, *command], check=True)
            subprocess.run([sys.executable, "-c", "import sys; print([p for p in sys.path if 'subprocess_hook' in p])"])
            """,
        )
        want = "netbuilder.caffe2.python.core\n" * 2 + "[]\n"
        assert printed(run_with_alias(script, cwd=tmp_path)) == want

    def test_children_elsewhere_find_the_same_netbuilder(self, tmp_path):
        """Also where only the folder that the parent was started in leads to it."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        code = f"""if True:
            import os, subprocess, sys, netbuilder
            os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].split(os.pathsep)[0]
            code = "import netbuilder; print(netbuilder.__file__)"
            subprocess.run([sys.executable, "-c", code], cwd={str(elsewhere)!r})
            print(netbuilder.__file__, flush=True)"""
        first, second = printed(run_with_alias("-c", code, cwd=ROOT)).split()
        assert first == second

    def test_children_that_do_not_use_it_load_nothing(self, tmp_path):
        child = (
            "import sys; print([name for name in sys.modules if name.startswith(('netbuilder', 'caffe2', 'numpy'))])"
        )
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        assert printed(run_with_alias("-c", code, cwd=tmp_path)) == "[]\n"

    def test_another_sitecustomize_still_runs(self, tmp_path):
        site = write(tmp_path / "site" / "sitecustomize.py", "import builtins; builtins.customized = True").parent
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD + '; print(customized)'!r}])"
        run = run_with_alias("-c", code, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT), str(site)]))
        assert printed(run) == "netbuilder.caffe2.python.core\nTrue\n"

    def test_without_the_variable_nothing_happens(self, tmp_path):
        run = python("-c", "import caffe2", cwd=tmp_path, PYTHONPATH=CHILDREN)
        assert run.returncode == 1 and "No module named 'caffe2'" in run.stderr
