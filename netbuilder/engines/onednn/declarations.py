"""The part of oneDNN's C interface (version 3) that is used here: prototypes for cffi, and enumeration values.

Handles are pointers to opaque structures; enumerations are ints. The values are those of oneDNN 3.2 up to at least
3.12. What is loaded is interface.py, the prototypes after parsing: ``make onednn-interface`` after a change here.
"""

from __future__ import annotations

__all__ = ["CDEF", "STATUS_NAMES"]

_HANDLES = ("engine", "stream", "memory_desc", "memory", "primitive_desc", "primitive", "primitive_attr", "post_ops")

_TYPES = (
    "".join(f"typedef struct dnnl_{name} *{name}_t;\n" for name in _HANDLES)
    + """
typedef int64_t dim_t;
typedef struct { int arg; memory_t memory; } exec_arg_t;
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } version_t;
typedef memory_desc_t md_t;
typedef primitive_desc_t pd_t;
"""
)

_OBJECTS = """
const version_t *dnnl_version(void);
int dnnl_set_primitive_cache_capacity(int);
int dnnl_get_effective_cpu_isa(void);
int dnnl_engine_create(engine_t *, int kind, size_t index);
int dnnl_stream_create(stream_t *, engine_t, unsigned flags);
int dnnl_stream_destroy(stream_t);
int dnnl_memory_desc_create_with_strides(md_t *, int ndims, const dim_t *dims, int type, const dim_t *strides);
int dnnl_memory_desc_create_with_tag(md_t *, int ndims, const dim_t *dims, int type, int tag);
int dnnl_memory_desc_create_submemory(md_t *, md_t parent, const dim_t *dims, const dim_t *offsets);
int dnnl_memory_desc_clone(md_t *, md_t);
int dnnl_memory_desc_destroy(md_t);
int dnnl_memory_desc_query(md_t, int what, void *result);
size_t dnnl_memory_desc_get_size(md_t);
int dnnl_memory_create(memory_t *, md_t, engine_t, void *handle);
int dnnl_memory_destroy(memory_t);
int dnnl_primitive_attr_create(primitive_attr_t *);
int dnnl_primitive_attr_destroy(primitive_attr_t);
int dnnl_primitive_attr_set_scratchpad_mode(primitive_attr_t, int mode);
int dnnl_primitive_attr_set_post_ops(primitive_attr_t, post_ops_t);
int dnnl_post_ops_create(post_ops_t *);
int dnnl_post_ops_destroy(post_ops_t);
int dnnl_post_ops_append_sum(post_ops_t, float scale, int32_t zero_point, int type);
int dnnl_post_ops_append_eltwise(post_ops_t, int algorithm, float alpha, float beta);
int dnnl_post_ops_append_binary(post_ops_t, int algorithm, md_t src1);
int dnnl_primitive_desc_query(pd_t, int what, int index, void *result);
md_t dnnl_primitive_desc_query_md(pd_t, int what, int index);
int dnnl_primitive_desc_destroy(pd_t);
int dnnl_primitive_create(primitive_t *, pd_t);
int dnnl_primitive_execute(primitive_t, stream_t, int count, const exec_arg_t *);
int dnnl_primitive_destroy(primitive_t);
"""

# Each has a pd_t * for the result as its first parameter; `engine` is at the position that the library requires.
_PRIMITIVES = """
reorder(md_t src, engine_t, md_t dst, engine_t, primitive_attr_t)
concat(engine_t, md_t dst, int n, int axis, const md_t *src, primitive_attr_t)
sum(engine_t, md_t dst, int n, const float *scales, const md_t *src, primitive_attr_t)
binary(engine_t, int algorithm, md_t src0, md_t src1, md_t dst, primitive_attr_t)
convolution_forward(engine_t, int prop, int algorithm, md_t src, md_t weights, md_t bias, md_t dst, GEOMETRY, ATTR)
convolution_backward_data(engine_t, int algorithm, md_t dsrc, md_t weights, md_t ddst, GEOMETRY, HINT)
convolution_backward_weights(engine_t, int algorithm, md_t src, md_t dweights, md_t dbias, md_t ddst, GEOMETRY, HINT)
deconvolution_forward(engine_t, int prop, int algorithm, md_t src, md_t weights, md_t bias, md_t dst, GEOMETRY, ATTR)
deconvolution_backward_data(engine_t, int algorithm, md_t dsrc, md_t weights, md_t ddst, GEOMETRY, HINT)
deconvolution_backward_weights(engine_t, int algorithm, md_t src, md_t dweights, md_t dbias, md_t ddst, GEOMETRY, HINT)
inner_product_forward(engine_t, int prop, md_t src, md_t weights, md_t bias, md_t dst, ATTR)
inner_product_backward_data(engine_t, md_t dsrc, md_t weights, md_t ddst, HINT)
inner_product_backward_weights(engine_t, md_t src, md_t dweights, md_t dbias, md_t ddst, HINT)
matmul(engine_t, md_t src, md_t weights, md_t bias, md_t dst, ATTR)
batch_normalization_forward(engine_t, int prop, md_t src, md_t dst, float epsilon, unsigned flags, ATTR)
batch_normalization_backward(engine_t, int prop, md_t dsrc, md_t ddst, md_t src, float epsilon, unsigned flags, HINT)
pooling_forward(engine_t, int prop, int algorithm, md_t src, md_t dst, POOLING, ATTR)
pooling_backward(engine_t, int algorithm, md_t dsrc, md_t ddst, POOLING, HINT)
eltwise_forward(engine_t, int prop, int algorithm, md_t src, md_t dst, float alpha, float beta, ATTR)
eltwise_backward(engine_t, int algorithm, md_t dsrc, md_t ddst, md_t data, float alpha, float beta, HINT)
lrn_forward(engine_t, int prop, int algorithm, md_t src, md_t dst, LRN, ATTR)
lrn_backward(engine_t, int algorithm, md_t dsrc, md_t ddst, md_t src, LRN, HINT)
"""

_ABBREVIATIONS = {
    "GEOMETRY": "const dim_t *strides, GAPS",
    "POOLING": "const dim_t *strides, const dim_t *kernel, GAPS",
    "GAPS": "const dim_t *dilates, const dim_t *pad_l, const dim_t *pad_r",
    "LRN": "dim_t size, float alpha, float beta, float k",
    "HINT": "pd_t forward, primitive_attr_t",
    "ATTR": "primitive_attr_t",
}


def _prototypes() -> str:
    text = _PRIMITIVES
    for short, full in _ABBREVIATIONS.items():
        text = text.replace(short, full)
    lines = (line.split("(", 1) for line in text.split("\n") if line)
    return "\n".join(f"int dnnl_{name}_primitive_desc_create(pd_t *, {rest};" for name, rest in lines)


CDEF = _TYPES + _OBJECTS + _prototypes()

STATUS_NAMES = {
    1: "out of memory",
    2: "invalid arguments",
    3: "unimplemented",
    4: "last implementation reached",
    5: "runtime error",
    6: "not required",
}

# Element types.
F16, BF16, F32, S32, S8, U8 = 1, 2, 3, 4, 5, 6

# Kinds of propagation.
FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD = 64, 96, 128

# Algorithms.
CONVOLUTION_DIRECT, DECONVOLUTION_DIRECT = 0x1, 0xA
RELU, TANH, ELU, LINEAR, LOGISTIC, HARD_SWISH = 0x20, 0x21, 0x22, 0x26, 0x29, 0x34
RELU_FROM_DST, TANH_FROM_DST, LOGISTIC_FROM_DST = 0x100, 0x101, 0x104
POOLING_MAX, POOLING_AVERAGE_ALL, POOLING_AVERAGE_VALID = 0x1FF, 0x2FF, 0x3FF
LRN_ACROSS_CHANNELS = 0xAFF
BINARY_ADD, BINARY_MUL, BINARY_SUB = 0x1FFF0, 0x1FFF1, 0x1FFF5

# Flags of batch normalization.
GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8

# Queries.
QUERY_IMPLEMENTATION, QUERY_STRIDES = 8, 14
QUERY_WORKSPACE, QUERY_SCRATCHPAD, QUERY_ARGUMENT = 135, 136, 255
QUERY_NDIMS, QUERY_DIMS, QUERY_TYPE, QUERY_OFFSET, QUERY_PADDED_DIMS = 256, 257, 258, 259, 260
QUERY_FORMAT, QUERY_BLOCK_COUNT, QUERY_BLOCKS, QUERY_BLOCK_DIMS = 262, 263, 264, 265

FORMAT_TAG_ANY, FORMAT_BLOCKED = 1, 2

# Arguments of a primitive's execution.
SRC, SRC_1, DST, WEIGHTS, BIAS = 1, 2, 17, 33, 41
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
WORKSPACE, SCRATCHPAD = 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS = 129, 145, 161, 169
DIFF_SCALE, DIFF_SHIFT = 255, 256
MULTIPLE_SRC, POST_OPERATION = 1024, 32768
