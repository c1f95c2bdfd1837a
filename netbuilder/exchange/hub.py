"""Files of weights by the names of models of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from typing import Any

from netbuilder.proto import NetError
from netbuilder.proto.extras import how_to_install

__all__ = ["is_hub_name", "weights_of_hub"]

_NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
_ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
_FILE = "model.safetensors"


def is_hub_name(source: Any) -> bool:
    """Whether a text is ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, and neither a file nor the name of one.

    >>> is_hub_name("timm/resnet18.a1_in1k"), is_hub_name("weights/resnet18.pth"), is_hub_name("resnet18")
    (True, False, False)
    """
    return (
        isinstance(source, str)
        and _NAME.fullmatch(source) is not None
        and not source.endswith(_ENDINGS)
        and not os.path.lexists(source)
    )


def weights_of_hub(name: str) -> str:
    """Return the file with the weights of a model of the hub, which huggingface_hub downloads once, and then keeps.

    Args:
        name: OWNER/NAME, or OWNER/NAME@REVISION; its repository must have model.safetensors.

    Raises:
        NetError: huggingface_hub is not installed, the hub has no such model, or cannot be reached and the file has not
            been kept.
    """
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError:
        raise NetError(
            f"{name!r}: there is no such file; as the name of a model of the Hugging Face Hub it needs the package "
            f"huggingface_hub: {how_to_install('hub')}; or give a file"
        ) from None
    parts = _NAME.fullmatch(name)
    assert parts is not None
    where: dict[str, Any] = {"repo_id": parts["repository"], "filename": _FILE, "revision": parts["revision"]}
    try:
        why = _unreachable(where)  # else hf_hub_download would try again for half a minute, with a warning each time
        return str(hf_hub_download(**where, local_files_only=bool(why)))
    except errors.LocalEntryNotFoundError as error:
        why = why or f"the hub cannot be reached ({_first_line(error)})"
        raise NetError(
            f"{name!r}: {why}, and {_FILE} has not been downloaded before; try again with a network, or download it "
            "elsewhere and give the file"
        ) from error
    except errors.RepositoryNotFoundError as error:  # gated ones included
        raise NetError(
            f"{name!r}: there is no such file, and the hub has no such model, or does not show it without a login: "
            f"{_first_line(error)}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NetError(f"{name!r}: the model has no revision {parts['revision']!r}") from error
    except errors.EntryNotFoundError as error:
        raise NetError(f"{name!r}: the model has no {_FILE}; download another file of it, and give that") from error
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise NetError(f"{name!r}: the hub refuses: {_first_line(error)}") from error


def _unreachable(where: dict[str, Any]) -> str:
    """Return why the hub cannot be asked for a file, or ""."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_hf_file_metadata(hf_hub_url(**where))
    except (errors.HfHubHTTPError, errors.HFValidationError):
        return ""  # it has answered, or hf_hub_download says what is wrong with the name
    except Exception as error:  # of the client for HTTP, which is another one in each version
        return f"the hub cannot be reached ({_first_line(error)}; HF_HUB_OFFLINE=1 spares the attempt)"
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
