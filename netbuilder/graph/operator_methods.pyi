"""The operators as methods of nets; made by ``make operator-methods``."""

from collections.abc import Sequence
from typing import Any, TypedDict

from typing_extensions import Unpack

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.proto import Argument, DeviceOption, NetDef, TensorProto

_Blob = str | BlobReference | GradientSlice | None
_Blobs = _Blob | Sequence[_Blob]
_Outputs = _Blobs | int

class _Common(TypedDict, total=False):
    name: str
    control_input: Any
    device_option: DeviceOption | None
    arg: Sequence[Argument] | None
    engine: str | None
    algo: Any
    bwd_data_algo: Any
    bwd_filter_algo: Any
    cudnn_exhaustive_search: Any
    cudnn_ws_nbytes_limit: Any
    enable_tensor_core: Any
    exhaustive_search: Any
    float16_compute: Any
    force_algo: Any
    force_algo_dgrad: Any
    force_algo_fwd: Any
    force_algo_wgrad: Any
    fwd_algo: Any
    is_test: Any
    order: Any
    shared_buffer: Any
    use_cudnn: Any
    use_grad_hack: Any
    ws_nbytes_limit: Any

class _CommonWithoutOrder(TypedDict, total=False):
    name: str
    control_input: Any
    device_option: DeviceOption | None
    arg: Sequence[Argument] | None
    engine: str | None
    algo: Any
    bwd_data_algo: Any
    bwd_filter_algo: Any
    cudnn_exhaustive_search: Any
    cudnn_ws_nbytes_limit: Any
    enable_tensor_core: Any
    exhaustive_search: Any
    float16_compute: Any
    force_algo: Any
    force_algo_dgrad: Any
    force_algo_fwd: Any
    force_algo_wgrad: Any
    fwd_algo: Any
    is_test: Any
    shared_buffer: Any
    use_cudnn: Any
    use_grad_hack: Any
    ws_nbytes_limit: Any

class _CommonWithoutIsTest(TypedDict, total=False):
    name: str
    control_input: Any
    device_option: DeviceOption | None
    arg: Sequence[Argument] | None
    engine: str | None
    algo: Any
    bwd_data_algo: Any
    bwd_filter_algo: Any
    cudnn_exhaustive_search: Any
    cudnn_ws_nbytes_limit: Any
    enable_tensor_core: Any
    exhaustive_search: Any
    float16_compute: Any
    force_algo: Any
    force_algo_dgrad: Any
    force_algo_fwd: Any
    force_algo_wgrad: Any
    fwd_algo: Any
    order: Any
    shared_buffer: Any
    use_cudnn: Any
    use_grad_hack: Any
    ws_nbytes_limit: Any

class _CommonWithoutOrderWithoutIsTest(TypedDict, total=False):
    name: str
    control_input: Any
    device_option: DeviceOption | None
    arg: Sequence[Argument] | None
    engine: str | None
    algo: Any
    bwd_data_algo: Any
    bwd_filter_algo: Any
    cudnn_exhaustive_search: Any
    cudnn_ws_nbytes_limit: Any
    enable_tensor_core: Any
    exhaustive_search: Any
    float16_compute: Any
    force_algo: Any
    force_algo_dgrad: Any
    force_algo_fwd: Any
    force_algo_wgrad: Any
    fwd_algo: Any
    shared_buffer: Any
    use_cudnn: Any
    use_grad_hack: Any
    ws_nbytes_limit: Any

class OperatorMethods:
    def APMeter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, buffer_size: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """predictions, labels -> AP. AP = the average precision of each class: the mean, over its samples, of the precision at the sample's rank."""
    def Abs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the absolute value of X; its gradient at 0 is 0."""
    def AbsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY * sign(X)."""
    def Accumulate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, gamma: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Y = X + gamma * Y, where the Y on the right is that of the previous run. No gradient."""
    def AccumulateHistogram(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, lower_bound: float | None = ..., upper_bound: float | None = ..., num_buckets: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> CurHist, AccHist. CurHist = the number of values of X in each bucket; AccHist = the same over all runs so far. No gradient."""
    def Accuracy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, top_k: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """P, label -> accuracy. The fraction of rows of P whose label is among the ``top_k`` greatest scores; ties go to the lower class."""
    def Acos(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the angle in [0, pi] whose cosine is X; NaN outside [-1, 1]."""
    def AcosGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = -dY / sqrt(1 - X * X)."""
    def Adadelta(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, moment_delta, grad, lr -> output_param, output_moment, output_moment_delta. M' = decay * M + (1 - decay) * G^2, U = G * sqrt(D + epsilon) / sqrt(M' + epsilon), P' = P + lr * U."""
    def Adagrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., decay: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, grad, lr -> output_param, output_moment, output_effective_lr?, output_update?. H' = decay * H + G^2; P' = P + L * G with the effective rate L = lr / (sqrt(H') + epsilon)."""
    def Adam(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta1: float | None = ..., beta2: float | None = ..., epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment_1, moment_2, grad, lr, iter -> output_param, output_moment_1, output_moment_2, output_grad?. M1' = beta1 * M1 + (1 - beta1) * G, M2' = beta2 * M2 + (1 - beta2) * G^2, P' = P + lr * G'."""
    def Add(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A + B."""
    def AddGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, A, B -> dA, dB. dA = dY and dB = dY, each summed over the axes along which its operand was broadcast."""
    def AddPadding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, padding_width: int | None = ..., end_padding_width: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths?, start_padding?, end_padding? -> Y, lengths_out?. Y = X with rows added before and after each segment: zeros, or ``start_padding`` and ``end_padding``."""
    def AffineChannel(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., is_learnable: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, scale, bias -> Y. Y = X * scale + bias, with one scale and one bias per channel, as batch normalization with fixed statistics."""
    def AffineChannelGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., is_learnable: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, X_or_scale, scale? -> dX, dscale?, dbias?. dX = dY * scale; with ``is_learnable`` also dscale and dbias, the sums of dY * X and of dY per channel."""
    def Alias(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X; the gradient of X is that of Y itself."""
    def AliasWithName(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_backward: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Alias with the arguments ``name`` and ``is_backward``, which are ignored."""
    def AllFinite(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = whether no element of any X is infinite or NaN."""
    def Allgather(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, status_blob: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """common_world, X+ -> Y. Y = the inputs of all processes, joined along the first axis: in the order of the ranks, then of the inputs."""
    def Allreduce(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, deterministic: bool | int | None = ..., status_blob: str | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Every output is the sum of all inputs of all processes."""
    def AllreduceBucket(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, precision: str | None = ..., deterministic: bool | int | None = ..., clip: float | None = ..., devices: int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is the sum of input i over the processes."""
    def AllreduceInt8(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is the sum, over the processes, of X_i + R_i rounded to 255 levels."""
    def AllreduceLowRank(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, rank: int | None = ..., warm_start: bool | int | None = ..., residual: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is an approximation, of rank ``rank`` or less, of the sum of X_i over the processes."""
    def AllreduceThreshold(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, residual: bool | int | None = ..., bound: float | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is the sum, over the processes, of the elements of X_i with magnitudes of ``bound`` or more."""
    def AllreduceTopK(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, residual: bool | int | None = ..., fraction: float | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is the sum, over the processes, of the elements of X_i with the largest magnitudes, and zero elsewhere."""
    def And(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A and B, element by element. No gradient."""
    def Append(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """A, B -> A. Append the rows of B to A, in place."""
    def ArgMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the index of the largest element along ``axis``, the first if several are equal. No gradient."""
    def ArgMin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the index of the smallest element along ``axis``, the first if several are equal. No gradient."""
    def Asin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the angle in [-pi/2, pi/2] whose sine is X; NaN outside [-1, 1]."""
    def AsinGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / sqrt(1 - X * X)."""
    def Assert(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, error_msg: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> (). Fail with ``error_msg`` unless all elements of X, bools or integers, are true. No outputs."""
    def AsyncNetBarrier(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, cross_device: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> X+. Return the inputs unchanged; what reads an output waits for the writers of all inputs, on all their devices."""
    def Atan(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the angle in (-pi/2, pi/2) whose tangent is X."""
    def AtanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / (1 + X * X)."""
    def AtomicAppend(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """mutex, field+ -> field+. Append to each of n columns the rows of another one, in place and under a mutex."""
    def AtomicFetchAdd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """mutex_ptr, mut_value, increment -> mut_value, fetched_value. Add ``increment`` to ``mut_value`` in place, under a mutex; fetched_value = the value before. For int32."""
    def AtomicFetchAdd64(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """mutex_ptr, mut_value, increment -> mut_value, fetched_value. AtomicFetchAdd for int64."""
    def AtomicIter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """mutex, iter -> iter. Add one to a counter in place, under a mutex that other operators of the workspace may share."""
    def Attention(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., causal: bool | int | None = ..., mask_gradient: bool | int | None = ..., zero_weights: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Q, K, V, mask? -> Y. Y = softmax(scale * Q K^T + mask) V, for each sample and head; the softmax is taken over the S keys."""
    def AttentionGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., causal: bool | int | None = ..., mask_gradient: bool | int | None = ..., zero_weights: str | None = ..., **common: Unpack[_Common]) -> Any:
        """dY, Q, K, V, mask? -> dQ, dK, dV, dmask?. Gradients of Attention: of Q, K, V and, if it is asked for, the mask; that of a boolean mask is zeros."""
    def AverageChunk(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, chunk: int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Replace one chunk of the elements of all X, one after the other, by its mean over the processes."""
    def AveragePool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the mean of each window, of its part inside X or, with ``count_include_pad``, of all of it with pads of 0."""
    def AveragePool1D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. AveragePool of images with one axis."""
    def AveragePool1DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. AveragePoolGradient of images with one axis."""
    def AveragePool2D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. AveragePool of images with two axes."""
    def AveragePool2DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. AveragePoolGradient of images with two axes."""
    def AveragePool3D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. AveragePool of images with three axes."""
    def AveragePool3DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. AveragePoolGradient of images with three axes."""
    def AveragePoolGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., count_include_pad: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. dX = each element of dY, divided by the size of its window, added at all elements of the window."""
    def AveragePut(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, stat_name: str | None = ..., magnitude_expand: int | None = ..., bound: bool | int | None = ..., default_value: float | None = ..., **common: Unpack[_Common]) -> Any:
        """value -> (). Add the value to <name>/stat_value/sum, and 1 to <name>/stat_value/count; otherwise as IncrementPut."""
    def AveragedLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the mean of all elements of X, a scalar; 0 for an empty X."""
    def AveragedLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / (the number of elements of X), for each element."""
    def BBoxTransform(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, angle_bound_on: bool | int | None = ..., angle_bound_lo: int | None = ..., angle_bound_hi: int | None = ..., clip_angle_thresh: float | None = ..., correct_transform_coords: bool | int | None = ..., legacy_plus_one: bool | int | None = ..., weights: Sequence[float] | None = ..., apply_scale: bool | int | None = ..., rotated: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """rois, deltas, im_info -> box_out, roi_batch_splits?. box_out = the boxes of ``rois`` transformed by deltas, one box for each class, clipped to their images."""
    def BRGNCHWCToPackedInt8BGRAStylizerDeprocess(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, mean -> Y. Y = X + mean, clipped to [0, 255] and truncated to integers, as channels-last images with a fourth channel."""
    def Barrier(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, status_blob: str | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world -> (). Wait until all processes have come to it."""
    def BatchBoxCox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, min_block_size: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data, lambda1, lambda2 -> output. output = ((data + lambda2)^lambda1 - 1) / lambda1, or ln(data + lambda2) where lambda1 is 0."""
    def BatchBucketOneHot(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths, boundaries -> Y. Y = for each column of X, a column per bucket, one more than it has boundaries: 1 for the element's, else 0."""
    def BatchBucketize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, boundaries, lengths -> Y. Y[n, k] = the number of boundaries of feature k below X[n, indices[k]], int32."""
    def BatchDenseToSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dense_last_dim: int | None = ..., default_value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, indices, X, like? -> Y. Y[i] = X[r, indices[i]] for the elements i of row r."""
    def BatchGather(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, match_outer: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices -> Y. Y = the slices of X at ``indices`` along axis 1; with ``match_outer`` each sample has its own indices."""
    def BatchGatherGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, match_outer: bool | int | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, dY -> dX. dX = dY summed at ``indices`` along ``axis``, 0 elsewhere; ``match_outer`` as for Gather."""
    def BatchMatMul(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, trans_a: bool | int | None = ..., trans_b: bool | int | None = ..., broadcast: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """A, B -> Y. Y[i] = A[i] B[i] for stacks of matrices, which ``trans_a`` and ``trans_b`` transpose."""
    def BatchMoments(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X -> mu, var. mu = the mean of X, var = the mean of X * X, per channel."""
    def BatchMomentsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """dmu, dvar, X -> dX. dX = (dmu + 2 * X * dvar) / the number of elements per channel."""
    def BatchOneHot(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data, lengths, values -> output. output = for each column of ``data`` and each of its possible values, whether the element equals it. No gradient."""
    def BatchPermutation(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices -> Y. Y[i] = X[indices[i]] for each sample i."""
    def BatchPermutationGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, dY -> dX. dX[indices[i]] = dY[i] for each sample i, summed over repeated indices."""
    def BatchSparseToDense(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dense_last_dim: int | None = ..., default_value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, indices, values, like? -> Y. Y[r, indices[i]] = values[i] for the elements i of row r, ``default_value`` elsewhere."""
    def BatchToSpace(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., block_size: int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the images that SpaceToBatch splits into X, without their border."""
    def BernoulliJSD(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, T -> L. L = the Jensen-Shannon divergence, in nats, of Bernoulli distributions with the probabilities X and T."""
    def BernoulliJSDGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dL, X, T -> dX. dX = dL * (logit(X) - logit((X + T) / 2)) / 2, with probabilities clamped to 1e-20 before log."""
    def BisectPercentile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, percentile_raw: Sequence[float] | None = ..., percentile_mapping: Sequence[float] | None = ..., percentile_lower: Sequence[float] | None = ..., percentile_upper: Sequence[float] | None = ..., lengths: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """raw_values -> percentile. percentile = the percentile of each value, from samples given as arguments. No gradient."""
    def BitwiseAnd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> C. C = the bits set in both A and B. No gradient."""
    def BitwiseOr(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> C. C = the bits set in A or B. No gradient."""
    def BitwiseXor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> C. C = the bits set in exactly one of A and B. No gradient."""
    def BooleanMask(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """data, mask -> masked_data, masked_indices?. The rows of ``data`` where ``mask`` is true; the second output is their indices."""
    def BooleanMaskGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """mask, dmasked_data -> ddata. dX = the rows of dY where ``mask`` is true, zeros elsewhere."""
    def BooleanMaskLengths(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, mask -> masked_lengths. masked_lengths[i] = the number of true elements of ``mask`` in segment i, of lengths[i] elements. No gradient."""
    def BooleanUnmask(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """mask_and_data+ -> unmasked_data. Merge the rows of several tensors by their masks: the inverse of several BooleanMask. No gradient."""
    def BoxWithNMSLimit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, score_thresh: float | None = ..., nms: float | None = ..., detections_per_im: int | None = ..., soft_nms_enabled: bool | int | None = ..., soft_nms_method: str | None = ..., soft_nms_sigma: float | None = ..., soft_nms_min_score_thres: float | None = ..., rotated: bool | int | None = ..., cls_agnostic_bbox_reg: bool | int | None = ..., input_boxes_include_bg_cls: bool | int | None = ..., output_classes_include_bg_cls: bool | int | None = ..., legacy_plus_one: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """scores, boxes_in, batch_splits? -> scores, boxes, classes, batch_splits?, keeps?, keeps_size?. The boxes of each class with a score above ``score_thresh`` that non-maximum suppression keeps. No gradient."""
    def Broadcast(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, root: int | None = ..., status_blob: str | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Every output is the first input of the process with rank ``root``."""
    def BroadcastBucket(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, root: int | None = ..., devices: int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Output i is input i of the process with rank ``root``."""
    def Bucketize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, boundaries: Sequence[float] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data -> output. output = the number of ``boundaries`` below each element, int32. No gradient."""
    def ByteWeightDequant(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, min: float | None = ..., max: float | None = ..., shape: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = bytes as float32 numbers of ``shape``: ``min`` for 0, ``max`` for 255, linear between them. No gradient."""
    def C10LayerNorm_DontUseThisOpYet(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., epsilon: float | None = ..., elementwise_affine: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, gamma?, beta? -> Y, mean, std. LayerNorm under its name from an experiment in Caffe2's last releases, without a gradient."""
    def CTCBeamSearchDecoder(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beam_width: int | None = ..., prune_threshold: float | None = ..., num_candidates: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths? -> output_len, values, output_prob?. The most probable sequences of each sample, without blanks (class 0) and repeats, by prefix beam search."""
    def CTCGreedyDecoder(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, merge_repeated: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths? -> output_len, values. The best class of each step without blanks (class 0) and, unless ``merge_repeated=False``, without repeats."""
    def Cast(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, to: Any | None = ..., from_type: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X converted to the type ``to``, a number of TensorProto.DataType or a name."""
    def CastGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY converted to the type of X, of which nothing else is read; zeros if those are no numbers with a point."""
    def Cbrt(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the cube root of X."""
    def CbrtGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, Y -> dX. dX = dY / (3 * Y * Y)."""
    def Ceil(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the smallest integer not below X. No gradient."""
    def ChannelBackpropStats(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, mean, inv_std, dY -> dscale, dbias. The gradients of scale and bias of SpatialBN on this device: the sums of dY * (X - mean) * inv_std and of dY."""
    def ChannelShuffle(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, group: int | None = ..., order: str | None = ..., kernel: int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the first channel of each of ``group`` groups, then the second of each, and so on."""
    def ChannelShuffleGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, group: int | None = ..., order: str | None = ..., kernel: int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """dY -> dX. dX = the channels of dY in the order that ChannelShuffle changed."""
    def ChannelStats(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, weight? -> sum, sumsq, count?. sum = the sum of X, sumsq = the sum of X * X, count = the number of elements, per channel."""
    def CheckAtomicBool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """atomic_bool -> value. value = a shared bool."""
    def CheckCounterDone(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """counter -> done. done = whether a counter is 0 or less."""
    def CheckDatasetConsistency(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fields: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """field+ -> (). Fail unless the columns, called ``fields``, have the numbers of rows that their lengths require."""
    def Checkpoint(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db: str | None = ..., db_type: str | None = ..., absolute_path: bool | int | None = ..., strip_prefix: str | None = ..., blob_name_overrides: Sequence[str] | None = ..., chunk_size: int | None = ..., options: bytes | str | None = ..., every: int | None = ..., **common: Unpack[_Common]) -> Any:
        """iter, X* -> (). Write all inputs to a file as Save does, every ``every`` iterations, counted by the first input."""
    def Clip(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, min: float | None = ..., max: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X clipped to [min, max]; its gradient at the bounds is 0."""
    def ClipGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, min: float | None = ..., max: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where min < Y < max, else 0."""
    def ClipTensorByScaling(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, threshold: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, norm, additional_threshold? -> Y. Y = X * bound / norm where norm exceeds bound, else X; bound = ``threshold`` * additional_threshold."""
    def CloneCommonWorld(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, sync: bool | int | None = ..., status_blob: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """existing_common_world -> common_world. Make a common world of the same processes; messages over the two do not meet."""
    def CloseBlobsQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """queue -> (). Close a queue: operators that wait for it, or would have to, return; remaining records can be read."""
    def CloseRebatchingQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """queue -> (). Close a queue: nothing more can be added; remaining samples can be read."""
    def Col2Im(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """columns, like -> Z. Z = images of the shape of the second input; each pixel is the sum over the windows that cover it."""
    def CollectAndDistributeFpnRpnProposals(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, rpn_min_level: int | None = ..., rpn_max_level: int | None = ..., rpn_post_nms_topN: int | None = ..., roi_canonical_scale: int | None = ..., roi_canonical_level: int | None = ..., roi_min_level: int | None = ..., roi_max_level: int | None = ..., legacy_plus_one: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """rpn_rois_and_scores+ -> rois, first_level, further_levels_and_rois_idx_restore+. CollectRpnProposals, whose result is the first output, and DistributeFpnProposals of that result, the others."""
    def CollectRpnProposals(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, rpn_min_level: int | None = ..., rpn_max_level: int | None = ..., rpn_post_nms_topN: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """rpn_rois_and_scores+ -> rois. rois = the ``rpn_post_nms_topN`` boxes of all levels with the best scores, best first. No gradient."""
    def CollectTensor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_to_collect: int | None = ..., **common: Unpack[_Common]) -> Any:
        """vector, tensor+ -> vector+. Keep a uniform random sample of ``num_to_collect`` of the tensors that the operator has seen so far."""
    def ColwiseMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the maximum of each column of each matrix."""
    def ColwiseMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY -> dX. dX = dY where X is the maximum of its column, at each of tied elements, else 0."""
    def ComputeOffset(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """cursor, field+ -> offsets. offsets = where each row of a record begins in the columns of each domain, and where the last one ends."""
    def Concat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., add_axis: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X+ -> Y, split_info. Y = the inputs joined along ``axis`` (or, with ``add_axis``, along a new one); split_info = their extents."""
    def ConcatBatchMatMulBatchGatherOp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, X+ -> Y. Y[n, k] = the dot product of X_i[n] and X_j[n], where indices[k] = i * (number of X) + j. No gradient."""
    def ConcatTensorVector(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """vector -> Y. Y = the tensors of a vector, concatenated along the first axis."""
    def Conditional(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """C, X, Z -> Y. Y = the rows of X where C, one element per row, is true, else those of Z. No gradient."""
    def ConditionalSetAtomicBool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """atomic_bool, condition -> (). Set a shared bool to true if ``condition`` is true; else leave it unchanged."""
    def ConstantFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., value: Any | None = ..., dtype: Any | None = ..., of_scalar_loss: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape?, value? -> Y. Every element of Y is ``value``, or that of the second input."""
    def Conv(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Y[n, m, p] = b[m] + sum over c, k of W[m, c, k] * X[n, c, p * stride + k * dilation - pad]."""
    def Conv1D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Conv of images with one axis."""
    def Conv1DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, W, dY -> dW, db_or_dX?, dX?. ConvGradient of images with one axis."""
    def Conv2D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Conv of images with two axes."""
    def Conv2DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, W, dY -> dW, db_or_dX?, dX?. ConvGradient of images with two axes."""
    def Conv3D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Conv of images with three axes."""
    def Conv3DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, W, dY -> dW, db_or_dX?, dX?. ConvGradient of images with three axes."""
    def ConvGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, W, dY -> dW, db_or_dX?, dX?. Gradients of Conv: of the filter, of the bias unless ``no_bias``, and of X if it is an output."""
    def ConvRelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Y = max(convolution of X, 0); the arguments are those of Conv."""
    def ConvTranspose(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., adj: int | None = ..., adj_h: int | None = ..., adj_w: int | None = ..., adjs: Sequence[int] | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, W, b? -> Y. Y = b + the gradient of a convolution with filter W with respect to its input, where X is that of its output."""
    def ConvTransposeGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., no_gradient_to_input: bool | int | None = ..., adj: int | None = ..., adj_h: int | None = ..., adj_w: int | None = ..., adjs: Sequence[int] | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, W, dY -> dW, db_or_dX?, dX?. Gradients of ConvTranspose: of the filter, of the bias unless ``no_bias``, and of X if it is an output."""
    def Copy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, on the operator's device; X may be on another device of its kind."""
    def CopyCPUToGPU(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, from host memory to the operator's GPU."""
    def CopyFromCPUInput(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, from host memory to the operator's device, CPU or GPU. No gradient."""
    def CopyGPUToCPU(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, from a GPU to host memory."""
    def CopyOnDeviceLike(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, like -> Y. Y = X, on the device where the second input is."""
    def CopyRowsToTensor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, row -> Y. Y = X with the rows ``indices`` replaced by ``row``, in place. The gradient of X is that of Y itself."""
    def CopyRowsToTensorGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY -> dX. dX = dY."""
    def Cos(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the cosine of X, in radians."""
    def CosGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = -dY * sin(X)."""
    def Cosh(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = (exp(X) + exp(-X)) / 2."""
    def CoshGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = dY * sinh(X)."""
    def CosineEmbeddingCriterion(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, margin: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """S, Y -> loss. loss = 1 - S where Y is 1, else max(0, S - margin); S is the cosine of a pair, Y says if it belongs together."""
    def CosineEmbeddingCriterionGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, margin: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """S, Y, dloss -> dS. dS = -dloss where Y is 1, else dloss where S is at least the margin, else 0."""
    def CosineSimilarity(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y -> Z. Z[i] = sum(X[i] * Y[i]) / (|X[i]| * |Y[i]|), for each sample i of the first axis; norms are at least 1e-6."""
    def CosineSimilarityGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Y, dZ -> dX, dY. dX and dY of CosineSimilarity, from X, Y and dZ."""
    def CountDown(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """counter -> done. Subtract one from a counter; done = whether it is below 0 now."""
    def CountUp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """counter -> previous_count. Add one to a counter; previous_count = the value before."""
    def CreateAtomicBool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> atomic_bool. Create a shared bool, initially false."""
    def CreateBlobsQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, capacity: int | None = ..., num_blobs: int | None = ..., enforce_unique_name: bool | int | None = ..., field_names: Sequence[str] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> queue. Create a queue of ``capacity`` records, each of ``num_blobs`` blobs."""
    def CreateBlobsQueueDB(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, key_blob_index: int | None = ..., value_blob_index: int | None = ..., timeout_secs: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """queue -> reader. reader = a reader like CreateDB's of a queue's records, whose blob ``value_blob_index`` is the value."""
    def CreateCommonWorld(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, size: int | None = ..., rank: int | None = ..., timeout_ms: int | None = ..., device_id: int | None = ..., device_ids: Sequence[int] | None = ..., sync: bool | int | None = ..., transport: str | None = ..., interface: str | None = ..., mpi_rendezvous: bool | int | None = ..., status_blob: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """kv_handler? -> common_world. Make the common world of ``size`` processes, of which this one has the number ``rank``."""
    def CreateCounter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, init_count: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> counter. Create a counter with the initial value ``init_count``."""
    def CreateDB(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db: str | None = ..., db_type: str | None = ..., num_shards: int | None = ..., shard_id: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> reader. Open a database; reader reads its records or, with shards, every ``num_shards``-th one from ``shard_id`` on."""
    def CreateMap(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, key_dtype: int | None = ..., value_dtype: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> map. Create an empty map with keys and values of int32 (the default) or int64."""
    def CreateMutex(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> mutex_ptr. Create a mutex."""
    def CreateRebatchingQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_blobs: int | None = ..., capacity: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> queue. Create a queue of ``capacity`` samples, each of ``num_blobs`` tensors."""
    def CreateScope(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> scope. Create a scope, which a Do operator takes as its last input and output."""
    def CreateTensorVector(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> vector. Create an empty vector of tensors."""
    def CreateTextFileReader(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, filename: str | None = ..., num_passes: int | None = ..., field_types: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> handler. Open a text file with one row per line and columns separated by tabs; see TextFileReaderRead."""
    def CreateTreeCursor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fields: Sequence[str] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> cursor. Create a cursor at the first row of a record with columns called ``fields``."""
    def CrossEntropy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label -> Y. Y[i] = -sum over classes of label[i] * log(max(X[i], 1e-20))."""
    def CrossEntropyGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label, dY -> dX. dX[i] = -dY[i] * label[i] / max(X[i], 1e-20)."""
    def Cube(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X * X * X."""
    def CubeGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = 3 * dY * X * X."""
    def CumSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., exclusive: bool | int | None = ..., reverse: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sums of all elements of X up to each along ``axis``."""
    def DBExists(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db_name: str | None = ..., db_type: str | None = ..., absolute_path: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> exists. exists = whether there is a database at a path."""
    def DataCouple(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X* -> Y*. Leave all blobs unchanged, but count as a writer of each: a reader of one runs after the writers of all."""
    def DecayAdagrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta1: float | None = ..., beta2: float | None = ..., epsilon: float | None = ..., weight_decay: float | None = ..., bias_correction_first: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment_1, moment_2, grad, lr, iter -> output_param, output_moment_1, output_moment_2. M1' = beta1 * M1 + (1 - beta1) * G, M2' = M2 + G^2, P' = P + lr * (G' + weight_decay * P)."""
    def DeformConv(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., deformable_group: int | None = ..., no_bias: bool | int | None = ..., padding_mode: str | None = ..., masked: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, offset, filter, bias_or_mask?, mask? -> Y. Y = the convolution of X, where each element of each window is sampled at its position plus an offset."""
    def DeformConvGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., deformable_group: int | None = ..., no_bias: bool | int | None = ..., padding_mode: str | None = ..., masked: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, offset, filter, dY, mask? -> d_offset, d_filter, d_bias_or_dX?, dX_or_d_mask?, d_mask?. The gradients of DeformConv: of offset, of filter, of bias unless ``no_bias``, of X, and of the mask."""
    def DenseVectorToIdList(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> lengths, values. lengths = the number of nonzero elements in each row of X; values = their columns, row by row."""
    def DepthConcat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., add_axis: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X+ -> Y, split_info. Concat under its old name."""
    def DepthSplit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., add_axis: bool | int | None = ..., order: str | None = ..., split: Sequence[int] | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, split? -> Y+. Split under its old name."""
    def DequeueBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, timeout_secs: float | None = ..., **common: Unpack[_Common]) -> Any:
        """queue -> blob+. Remove the first record of a queue, waiting for one; a closed queue that is empty is an error."""
    def DequeueRebatchingQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_elements: int | None = ..., **common: Unpack[_Common]) -> Any:
        """queue -> tensor+. Remove ``num_elements`` samples of a queue, waiting for them, and stack their tensors along a new first axis."""
    def DestroyCommonWorld(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """common_world -> common_world. Free what the library has for a common world; using it afterwards is an error."""
    def DiagonalFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., value: Any | None = ..., dtype: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``value`` where all indices are equal, else 0; Y has two axes, or more of the same extent."""
    def DistributeFpnProposals(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, roi_canonical_scale: int | None = ..., roi_canonical_level: int | None = ..., roi_min_level: int | None = ..., roi_max_level: int | None = ..., legacy_plus_one: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """rois -> first_level, further_levels_and_rois_idx_restore+. The boxes of each level from ``roi_min_level`` to ``roi_max_level``, one output per level, and rois_idx_restore."""
    def Div(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A / B; the quotient of integers is truncated toward zero."""
    def DivGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, A, B, Y? -> dA, dB. dA = dY / B and dB = -dY * Y / B, each summed over the axes along which its operand was broadcast."""
    def DivideBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """scale, X+ -> Y+. Each Y is its X divided by the scale, in place; float16 is divided in float32."""
    def Do(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, net: NetDef | bytes | None = ..., inner_blobs: Sequence[str] | None = ..., outer_blobs_idx: Sequence[int] | None = ..., saved_fwd_blobs: Sequence[str] | None = ..., reuse_workspace: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Run ``net`` with blobs of its own."""
    def DotProduct(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y -> Z. Z[i] = sum(X[i] * Y[i]), for each sample i of the first axis."""
    def DotProductGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Y, dZ -> dX, dY. dX[i] = Y[i] * dZ[i], and dY[i] = X[i] * dZ[i]."""
    def DotProductWithPadding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad_value: float | None = ..., replicate: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y -> Z. Z[i] = sum(X[i] * Y[i]), with the shorter rows padded with ``pad_value`` or, with ``replicate``, repeated."""
    def DotProductWithPaddingGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad_value: float | None = ..., replicate: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Y, dZ -> dX, dY. dX and dY of DotProductWithPadding, from X, Y and dZ."""
    def Dropout(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, ratio: float | None = ..., is_test: bool | int | None = ..., sample_axis: int | None = ..., **common: Unpack[_CommonWithoutIsTest]) -> Any:
        """X -> Y, mask?. Y = X * mask / (1 - ratio), with a random mask, False with probability ``ratio``; in test mode Y = X."""
    def DropoutGrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, ratio: float | None = ..., is_test: bool | int | None = ..., sample_axis: int | None = ..., **common: Unpack[_CommonWithoutIsTest]) -> BlobReference:
        """dY, mask? -> dX. dX = dY * mask / (1 - ratio); in test mode, dX = dY."""
    def EQ(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = whether A equals B, element by element. No gradient."""
    def ElementwiseLinear(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, w, b -> Y. Y = X * w + b, with one w and one b per feature; the features are the axes of X from ``axis`` on."""
    def ElementwiseLinearGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> Any:
        """dY, X, w -> dX, dw, db. dX = dY * w; dw and db are the sums of dY * X and of dY over all samples."""
    def Elu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X where X >= 0, else alpha * (exp(X) - 1)."""
    def EluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where Y >= 0, else dY * (Y + alpha); with alpha = 0, dX = 0 where Y = 0."""
    def EnforceFinite(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """input -> (). Fail if an element of the input is infinite or NaN. No outputs."""
    def EnqueueBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """queue, blob* -> blob+. Add a copy of the blobs to a queue, waiting for space; a closed queue that is full is an error."""
    def EnqueueRebatchingQueue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, enqueue_batch: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """queue, tensor+ -> (). Add tensors to a queue as one sample or, with ``enqueue_batch``, each of their rows as one, waiting for space."""
    def EnsureCPUOutput(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, in host memory. Not differentiable."""
    def EnsureClipped(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, min: float | None = ..., max: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """param, indices?, grad? -> output_param. output_param = param clipped to [min, max]; with ``indices``, only the rows that they name."""
    def EnsureDense(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X; the gradient of X is that of Y, as a dense tensor."""
    def Erf(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to X."""
    def ErfGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY * 2 / sqrt(pi) * exp(-X * X)."""
    def EstimateAllBlobSizes(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, include_shared: bool | int | None = ..., options: bytes | str | None = ..., **common: Unpack[_Common]) -> Any:
        """() -> blob_names, blob_sizes. blob_names = the sorted names of the workspace's blobs; blob_sizes = their estimated sizes in a file, in bytes."""
    def Exp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = e to the power of X."""
    def Expand(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, shape? -> Y. Y = X broadcast with ``shape``, as by NumPy; 1 or -1 in ``shape`` keeps the extent of X."""
    def ExpandDims(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dims: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with axes of extent 1 inserted, which are at ``dims`` in Y."""
    def ExpandGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = dY summed over the axes along which X was broadcast."""
    def FC(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., axis_w: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, W, b -> Y. Y = X W^T + b, with X flattened to a matrix at ``axis``, and W, (outputs, inputs), at ``axis_w``."""
    def FCGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., axis_w: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, dY -> dW, db, dX?. Gradients of FC: dW = dY^T X, db = the column sums of dY and, if it is an output, dX = dY W."""
    def FCTransposed(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., axis_w: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, W, b -> Y. Y = X W + b, with X flattened to a matrix at ``axis``, and W, (inputs, outputs), at ``axis_w``."""
    def FCTransposedGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., axis_w: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, dY -> dW, db, dX?. Gradients of FCTransposed: dW = X^T dY, db = the column sums of dY and, if it is an output, dX = dY W^T."""
    def FP16MomentumSGDUpdate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., nesterov: bool | int | None = ..., weight_decay: float | None = ..., fp32_update: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, moment, lr, param -> output_grad, output_moment, output_param. As MomentumSGDUpdate of G + weight_decay * P, all in float16."""
    def FP32MomentumSGDUpdate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., nesterov: bool | int | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, moment, lr, param -> output_grad, output_moment, output_param. As MomentumSGDUpdate of G + weight_decay * P, all in float32."""
    def Fail(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """() -> (). Fail like an operator that returns false in Caffe2, to test how nets fail."""
    def FeedBlob(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, value: bytes | str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> Y. Y = the string ``value``, as ``workspace.feed`` would store it."""
    def FileStoreHandlerCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, path: str | None = ..., prefix: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> handler. Make a store in the folder ``path``, which all processes see; ``prefix`` begins all keys."""
    def Find(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, missing_value: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index, query -> query_indices. query_indices = the last position of an element of ``query`` in ``index``, or ``missing_value``; no gradient."""
    def FindDuplicateElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the indices of the elements of a vector that occurred before, int64, ascending."""
    def Flatten(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X as a matrix: the axes before ``axis`` are its rows, the others its columns."""
    def FlattenToVec(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X as a vector."""
    def FlexibleTopK(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, K -> Values, Indices. The K[i] largest elements of each row i of X, in descending order, row after row; ties go to the lower index."""
    def FlexibleTopKGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, K, dValues, Indices -> dX. dX = dV at the positions of the elements, else 0."""
    def Float16ConstantFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> Y. Y = ``value`` in float16, of ``shape``."""
    def Float16SparseNormalize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, use_max_norm: bool | int | None = ..., norm: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """param, indices, grad? -> output_param. SparseNormalize of a float16 table, computed in float32."""
    def Float16UniformFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., min: float | None = ..., max: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> Y. Y is uniform in [min, max], drawn in float32 and rounded to float16, which may give ``max`` itself."""
    def FloatToFused2BitFakeRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. The codes, scales and biases of FloatToFused2BitRowwiseQuantized, stored as an 8-bit table."""
    def FloatToFused2BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Rows in float32 as (..., columns / 4 + 4) bytes: four codes per byte, then scale and bias in float16."""
    def FloatToFused4BitFakeRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. The codes, scales and biases of FloatToFused4BitRowwiseQuantized, stored as an 8-bit table."""
    def FloatToFused4BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Rows in float32 as (..., columns / 2 + 4) bytes: two codes per byte, then scale and bias in float16."""
    def FloatToFused8BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Rows (..., columns) in float32 as (..., columns + 8) bytes: 8-bit codes, then scale and bias in float32."""
    def FloatToFused8BitRowwiseQuantizedHalfScaleBias(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Rows in float32 as (..., columns + 4) bytes: 8-bit codes, then scale and bias in float16."""
    def FloatToFusedRandRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, bitwidth: int | None = ..., random: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. Rows of a float32 matrix as (rows, 10 + bytes) of uint8, with ``bitwidth`` bits (1, 2, 4 or 8) per element."""
    def FloatToHalf(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, clip: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, float32, rounded to the nearest float16; magnitudes above 65504 become infinite."""
    def FloatToRowwiseQuantized8Bits(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """input -> quantized_input, scale_bias. Codes and scale_bias with input[i] = scale_bias[i, 0] * quantized_input[i] + scale_bias[i, 1]. No gradient."""
    def Floor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the largest integer not above X. No gradient."""
    def Free(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> X+. Replace tensors by empty ones, of shape (0,), and other values by None."""
    def Ftrl(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., beta: float | None = ..., lambda1: float | None = ..., lambda2: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, n_z, grad, alpha? -> output_param, output_n_z. n' = n + G^2, z' = z + G - (sqrt(n') - sqrt(n)) / alpha * P, and P' from z' and n'."""
    def Fused2BitRowwiseQuantizedToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float32 rows of a 2-bit table."""
    def Fused2BitRowwiseQuantizedToHalf(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float16 rows of a 2-bit table."""
    def Fused4BitRowwiseQuantizedToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float32 rows of a 4-bit table."""
    def Fused4BitRowwiseQuantizedToHalf(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float16 rows of a 4-bit table."""
    def Fused8BitRowwiseQuantizedHalfScaleBiasToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float32 rows of an 8-bit table with scale and bias in float16."""
    def Fused8BitRowwiseQuantizedHalfScaleBiasToHalfFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The same as Fused8BitRowwiseQuantizedHalfScaleBiasToFloat: Caffe2's kernel of this name returns float32 too."""
    def Fused8BitRowwiseQuantizedToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. The float32 rows (..., columns) of an 8-bit table with scale and bias in float32. No gradient."""
    def Fused8BitRowwiseQuantizedToHalfFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scale_bias_quantized_input -> float_output. Fused8BitRowwiseQuantizedToFloat, with rows in float16."""
    def FusedRandRowwiseQuantizedToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """quantized_input -> float_input. The float32 matrix that FloatToFusedRandRowwiseQuantized stored, decoded as its first row states. No gradient."""
    def GE(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A >= B, element by element; false is less than true. No gradient."""
    def GFtrl(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., beta: float | None = ..., lambda1: float | None = ..., lambda2: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, n_z, grad, alpha? -> output_param, output_n_z. As Ftrl, but lambda1 * sqrt(N) is compared with the norm of z' over the N elements along the first axis."""
    def GRUUnit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, drop_states: bool | int | None = ..., sequence_lengths: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """hidden_prev, gates, seq_lengths, timestep? -> hidden. H' = u * H + (1 - u) * o; gates holds r, then u before its sigmoid and o before its tanh."""
    def GRUUnitGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, drop_states: bool | int | None = ..., sequence_lengths: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """hidden_prev, gates, more+ -> dhidden_prev, dgates. dhidden_prev and dgates, from the inputs of GRUUnit, its output, and the gradient of the output."""
    def GT(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A > B, element by element; false is less than true. No gradient."""
    def Gather(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, match_outer: bool | int | None = ..., axis: int | None = ..., dense_gradient: bool | int | None = ..., wrap_indices: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices -> Y. Y = the slices of X at ``indices`` along ``axis``; the shape of the indices replaces the axis."""
    def GatherByKey(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """keys, values+ -> Y. Y[i] = the next row of the part of ``keys[i]``: the inverse of Partition by the same keys."""
    def GatherElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices -> Y. Y[i, j] = X[indices[i, j], j] for ``axis`` 0, X[i, indices[i, j]] for axis 1, and so on."""
    def GatherElementsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, dY -> dX. dX = dY added to the elements that were gathered, 0 elsewhere."""
    def GatherFromOwners(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, owners: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Blob i becomes that of rank ``owners[i]``, on all processes; it has the same shape and type on all of them."""
    def GatherFused8BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES -> OUTPUT. The float32 rows ``INDICES`` of an 8-bit table with scale and bias in float32. No gradient."""
    def GatherND(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_dims: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices -> Y. Y[i] = X[indices[i, 0], indices[i, 1], ...]: an element, or a slice if X has more axes."""
    def GatherNDGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_dims: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, dY -> dX. dX = dY added to the slices that were gathered, 0 elsewhere."""
    def GatherPadding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, padding_width: int | None = ..., end_padding_width: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths? -> padding_sum, end_padding_sum?. The sum of the padding rows before the segments, and of those after them; with one output, of all."""
    def GatherRanges(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, ranges -> Y, lengths. Y = the elements of all ranges, concatenated; lengths = the number of each sample's elements. No gradient."""
    def GatherRangesToDense(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, lengths: Sequence[int] | None = ..., min_observation: int | None = ..., max_mismatched_ratio: float | None = ..., max_empty_ratio: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X, ranges, key? -> Y+. Output f = each sample's range of feature f, (samples, ``lengths[f]``), or 0 where the range is empty."""
    def GaussianFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., mean: float | None = ..., std: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y is normal with mean ``mean`` and standard deviation ``std``."""
    def Gelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fast_gelu: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X * P(X), with P the distribution function of the standard normal."""
    def GeluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fast_gelu: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = dY times the derivative of Gelu at X."""
    def GenerateProposals(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, angle_bound_on: bool | int | None = ..., angle_bound_lo: int | None = ..., angle_bound_hi: int | None = ..., clip_angle_thresh: float | None = ..., correct_transform_coords: bool | int | None = ..., legacy_plus_one: bool | int | None = ..., spatial_scale: float | None = ..., pre_nms_topN: int | None = ..., post_nms_topN: int | None = ..., nms_thresh: float | None = ..., min_size: float | None = ..., **common: Unpack[_Common]) -> Any:
        """scores, bbox_deltas, im_info, anchors -> rois, rois_probs. rois = the best boxes of each image after non-maximum suppression, and rois_probs = their scores. No gradient."""
    def GenerateProposalsCPP(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, angle_bound_on: bool | int | None = ..., angle_bound_lo: int | None = ..., angle_bound_hi: int | None = ..., clip_angle_thresh: float | None = ..., correct_transform_coords: bool | int | None = ..., legacy_plus_one: bool | int | None = ..., spatial_scale: float | None = ..., pre_nms_topN: int | None = ..., post_nms_topN: int | None = ..., nms_thresh: float | None = ..., min_size: float | None = ..., **common: Unpack[_Common]) -> Any:
        """scores, bbox_deltas, im_info, anchors -> rois, rois_probs. GenerateProposals under its old name."""
    def GetAllBlobNames(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, include_shared: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> blob_names. blob_names = the sorted names of the workspace's blobs and, with ``include_shared``, of its parent's."""
    def GetCursorOffset(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """cursor -> offsets. offsets = the number of rows of each domain before the cursor; empty if nothing was read."""
    def GivenTensorBoolFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, bool."""
    def GivenTensorByteStringToUInt8Fill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = the bytes of the one string in ``values``, uint8."""
    def GivenTensorDoubleFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, float64 (a saved operator stores them as float32)."""
    def GivenTensorFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., dtype: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, float32 or of type ``dtype``."""
    def GivenTensorInt16Fill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, int16."""
    def GivenTensorInt64Fill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, int64."""
    def GivenTensorIntFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, int32."""
    def GivenTensorStringFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., values: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = ``values``, strings (bytes objects)."""
    def Glu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the first half of X along axis ``dim``, times the sigmoid of the second half. No gradient, as in Caffe2."""
    def GridSample(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mode: str | None = ..., padding_mode: str | None = ..., align_corners: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, grid -> Y. Y[n, :, i, j] = X[n] at the position grid[n, i, j], interpolated."""
    def GridSampleGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mode: str | None = ..., padding_mode: str | None = ..., align_corners: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, grid, dY -> dX, dgrid. dX and dgrid; a position has no gradient in the mode 'nearest'."""
    def GroupNorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., order: str | None = ..., group: int | None = ..., is_test: bool | int | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """X, gamma, beta -> Y, mean?, rsig?. Y = gamma * (X - mean) * rsig + beta: each image normalized in ``group`` groups of its channels."""
    def GroupNormGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., order: str | None = ..., group: int | None = ..., is_test: bool | int | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """dY, X, gamma, beta, mean, rsig -> dX, dgamma, dbeta. Gradients of GroupNorm: of X, gamma and beta."""
    def GroupSpatialSoftmax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> probabilities. probabilities = the softmax over the ``num_classes`` channels of each anchor."""
    def GroupSpatialSoftmaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """probabilities, d_probabilities -> dX. dX = p * (dp - the sum of dp * p over the classes of each anchor), with p the probabilities."""
    def HSoftmax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, hierarchy: bytes | str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, b, labels -> Y, intermediate_output. Y = -log of the probability of each sample's label: the product of the probabilities on the path to the word."""
    def HSoftmaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, hierarchy: bytes | str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, b, labels, intermediate_output, dY -> dX, dW, db, dintermediate_output. dX, dW and db of HSoftmax, and the gradients of the scores and probabilities that it stored."""
    def HSoftmaxSearch(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, tree: bytes | str | None = ..., beam: float | None = ..., topN: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, b -> Y_names, Y_scores. The ``topN`` most probable nodes and words of each sample: names (of a word, its number) and scores."""
    def HalfFloatToFused8BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused8BitRowwiseQuantized for rows in float16."""
    def HalfFloatToFused8BitRowwiseQuantizedHalfScaleBias(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused8BitRowwiseQuantizedHalfScaleBias for rows in float16."""
    def HalfToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X, float16, converted to float32, which is exact."""
    def HalfToFused2BitFakeRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused2BitFakeRowwiseQuantized for rows in float16."""
    def HalfToFused2BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused2BitRowwiseQuantized for rows in float16."""
    def HalfToFused4BitFakeRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused4BitFakeRowwiseQuantized for rows in float16."""
    def HalfToFused4BitRowwiseQuantized(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. FloatToFused4BitRowwiseQuantized for rows in float16."""
    def HardSigmoid(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., beta: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = alpha * X + beta, clipped to [0, 1]."""
    def HardSigmoidGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = alpha * dY where 0 < Y < 1, else 0."""
    def HasElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = whether any of the tensors has elements, a bool. No gradient."""
    def HasScope(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scope -> has_scope. has_scope = whether a Do operator has run with a scope, and its gradient has not."""
    def HeatmapMaxKeypoint(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, should_output_softmax: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """heatmaps, bboxes_in -> keypoints. keypoints = x, y, value and probability of each heatmap's maximum. No gradient."""
    def Histogram(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, bin_edges: Sequence[float] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> histogram. histogram = the number of elements of all inputs in each bin between adjacent ``bin_edges``. No gradient."""
    def HuffmanTreeHierarchy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Labels -> Hierarchy. The Huffman tree of the classes 0 ... ``num_classes`` - 1, by their frequencies among the labels: a TreeProto."""
    def If(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, then_net: NetDef | bytes | None = ..., else_net: NetDef | bytes | None = ..., **common: Unpack[_Common]) -> Any:
        """condition, X* -> Y*. Run ``then_net`` if the condition is true, else ``else_net``, if there is one."""
    def Im2Col(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the window at each position of the images X, with its elements in place of the channels."""
    def ImageInput(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_size: int | None = ..., scale: int | None = ..., minsize: int | None = ..., warp: bool | int | None = ..., crop: int | None = ..., mirror: bool | int | None = ..., is_test: bool | int | None = ..., mean: float | None = ..., std: float | None = ..., mean_per_channel: Sequence[float] | None = ..., std_per_channel: Sequence[float] | None = ..., color: bool | int | None = ..., color_jitter: bool | int | None = ..., img_saturation: float | None = ..., img_brightness: float | None = ..., img_contrast: float | None = ..., color_lighting: bool | int | None = ..., color_lighting_std: float | None = ..., scale_jitter_type: int | None = ..., random_scale: Sequence[int] | None = ..., bounding_ymin: int | None = ..., bounding_xmin: int | None = ..., bounding_height: int | None = ..., bounding_width: int | None = ..., decode_threads: int | None = ..., use_gpu_transform: bool | int | None = ..., use_caffe_datum: bool | int | None = ..., output_type: str | None = ..., order: str | None = ..., label_type: int | None = ..., num_labels: int | None = ..., output_sizes: Sequence[int] | None = ..., max_decode_error_ratio: float | None = ..., interpolation: str | None = ..., db: str | None = ..., db_type: str | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """reader? -> data, label, additional*. Read ``batch_size`` records of images and labels; the outputs are images, labels, and further tensors of records."""
    def IncrementPut(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, stat_name: str | None = ..., magnitude_expand: int | None = ..., bound: bool | int | None = ..., default_value: float | None = ..., **common: Unpack[_Common]) -> Any:
        """value -> (). Add the value to the statistic <name>/stat_value. No outputs."""
    def IndexFreeze(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index -> index. Freeze an index: from now on unknown keys are not added."""
    def IndexGet(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index, keys -> indices. indices = the number of each key; new keys get the next numbers, or 0 in a frozen index."""
    def IndexHash(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, seed: int | None = ..., modulo: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = a hash of each element of X, in [0, ``modulo``)."""
    def IndexLoad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, skip_first_entry: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index, items -> index. Replace the keys of an index by ``items``, numbered from 1; with ``skip_first_entry``, from the second on."""
    def IndexSize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index -> items. items = the count of numbers in an index, 0 included."""
    def IndexStore(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """index -> items. items = the keys of an index in the order of their numbers, from number 1 on."""
    def InferenceLSTM(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_layers: int | None = ..., has_biases: bool | int | None = ..., batch_first: bool | int | None = ..., bidirectional: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, hidden, cell, param+ -> output, hidden_last, cell_last. Run ``num_layers`` LSTM layers over X, T steps of N samples; with ``batch_first`` the samples are the first axis."""
    def InstanceNorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, scale, bias -> Y, mean?, inv_std?. Y = scale * (X - mean) * inv_std + bias: each channel of each image normalized on its own."""
    def InstanceNormGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, scale, bias, dY, mean?, inv_std? -> dX, dscale, dbias. Gradients of InstanceNorm: of X, scale and bias; statistics are computed again if they are not inputs."""
    def IntIndexCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, max_elements: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> index. Create an index of int32 keys, with capacity for ``max_elements`` numbers, 0 included."""
    def IntegralImage(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y[n, c, i, j] = the sum of X[n, c] over the first i rows and j columns, (N, C, H + 1, W + 1)."""
    def IntegralImageGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX[n, c, i, j] = the sum of dY[n, c] over the rows after i and the columns after j."""
    def IsEmpty(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = whether X has no elements, a bool. No gradient."""
    def IsMemberOf(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, value: Any | None = ..., dtype: Any | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = whether each element of X is one of the values of the argument ``value``, bool."""
    def IsNaN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """tensor -> output. output = 1 where the input is NaN, else 0, uint8. No gradient."""
    def Iter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """iter? -> iter. Add one to a counter in place. Without an input, the counter is the output itself, and starts at 1."""
    def KeySplit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, categorical_limit: int | None = ..., **common: Unpack[_Common]) -> Any:
        """keys -> positions+. For each k below ``categorical_limit``, an output with the positions of k in the flattened keys, int32."""
    def KeyValueToMap(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """keys, values -> map. Create a map from keys to values; of repeated keys, the first counts."""
    def L1Distance(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y -> Z. Z[i] = sum(|X[i] - Y[i]|), for each sample i of the first axis."""
    def L1DistanceGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Y, dZ -> dX, dY. dX[i] = sign(X[i] - Y[i]) * dZ[i], and dY = -dX."""
    def LC(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, filter, bias? -> Y. Y = the convolution of X with different filters and biases at each position."""
    def LC1D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, filter, bias? -> Y. LC of images with one axis."""
    def LC1DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, filter, dY -> d_filter, d_bias_or_dX?, dX?. The gradients of LC1D."""
    def LC2D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, filter, bias? -> Y. LC of images with two axes."""
    def LC2DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, filter, dY -> d_filter, d_bias_or_dX?, dX?. The gradients of LC2D."""
    def LC3D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, filter, bias? -> Y. LC of images with three axes."""
    def LC3DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, filter, dY -> d_filter, d_bias_or_dX?, dX?. The gradients of LC3D."""
    def LCGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., group: int | None = ..., no_bias: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, filter, dY -> d_filter, d_bias_or_dX?, dX?. The gradients of LC: of the filters, of the bias unless ``no_bias``, and of X."""
    def LE(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A <= B, element by element; false is less than true. No gradient."""
    def LRN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, size: int | None = ..., alpha: float | None = ..., beta: float | None = ..., bias: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X -> Y, Y_scale?. Y = X / scale ** beta, with scale = bias + alpha / size * the sum of squares over ``size`` channels around it."""
    def LRNGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, size: int | None = ..., alpha: float | None = ..., beta: float | None = ..., bias: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. The gradient of LRN."""
    def LSTMUnit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, drop_states: bool | int | None = ..., sequence_lengths: bool | int | None = ..., forget_bias: float | None = ..., **common: Unpack[_Common]) -> Any:
        """hidden_prev, cell_prev, gates, seq_lengths, timestep? -> hidden, cell. C' = f * C + i * g, H' = o * tanh(C'); gates holds i, f and o before their sigmoids, then g before its tanh."""
    def LSTMUnitGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, drop_states: bool | int | None = ..., sequence_lengths: bool | int | None = ..., forget_bias: float | None = ..., **common: Unpack[_Common]) -> Any:
        """hidden_prev, cell_prev, gates, more+ -> dhidden_prev, dcell_prev, dgates. dhidden_prev, dcell_prev and dgates, from the inputs of LSTMUnit, its outputs, and their gradients."""
    def LT(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A < B, element by element; false is less than true. No gradient."""
    def LabelCrossEntropy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label -> Y. Y[i] = -log(max(X[i, label[i]], 1e-20))."""
    def LabelCrossEntropyGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label, dY -> dX. dX[i, label[i]] = -dY[i] / max(X[i, label[i]], 1e-20), all else 0."""
    def LambdaRankNdcg(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, use_ndcg_as_loss: bool | int | None = ..., use_idcg_normalization: bool | int | None = ..., use_exp_gain: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """y, r, session_lengths -> loss, dy. The loss of each session with the scores y and the relevances r, and its gradient dy."""
    def LambdaRankNdcgGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, use_ndcg_as_loss: bool | int | None = ..., use_idcg_normalization: bool | int | None = ..., use_exp_gain: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """y, session_lengths, dy, dloss -> d_y. d_y = dy * dloss of the item's session."""
    def Lars(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, offset: float | None = ..., lr_min: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dX, wd, trust, lr_max -> lr_rescaled. lr_rescaled = trust / (|dX| / |X| + wd + offset), clipped to [lr_min, lr_max]; 1 if |X| is 0."""
    def LastNWindowCollector(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_to_collect: int | None = ..., **common: Unpack[_Common]) -> Any:
        """LAST_N, NEXT, DATA, MUTEX?, NUM_VISITED? -> LAST_N, NEXT, NUM_VISITED?. Keep the last ``num_to_collect`` rows of DATA of all runs so far; a new row replaces the oldest one."""
    def LayerNorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., epsilon: float | None = ..., elementwise_affine: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, gamma?, beta? -> Y, mean, std. Y = (X - mean) / std, with statistics over all axes from ``axis`` on; std = sqrt(variance + epsilon)."""
    def LayerNormGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., epsilon: float | None = ..., elementwise_affine: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """dY, Y, mean, std, X, gamma? -> dX, dgamma?, dbeta?. dX of LayerNorm and, with ``elementwise_affine``, the gradients of gamma and beta."""
    def LeakyRelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X where X >= 0, else alpha * X."""
    def LeakyReluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where Y >= 0, else alpha * dY; with alpha = 0, where Y is 0 for all negative X, dX = 0 where Y = 0."""
    def LearningRate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, base_lr: float | None = ..., policy: str | None = ..., power: float | None = ..., gamma: float | None = ..., stepsize: int | None = ..., decay: float | None = ..., max_lr: float | None = ..., min_lr: float | None = ..., active_first: bool | int | None = ..., active_period: int | None = ..., inactive_period: int | None = ..., max_iter: int | None = ..., num_iter: int | None = ..., start_multiplier: float | None = ..., end_multiplier: float | None = ..., multiplier: float | None = ..., multiplier_1: float | None = ..., multiplier_2: float | None = ..., num_iter_1: int | None = ..., num_iter_2: int | None = ..., m1: float | None = ..., n1: int | None = ..., m2: float | None = ..., n2: int | None = ..., m3: float | None = ..., period: int | None = ..., t_mult: float | None = ..., lr_shrink: float | None = ..., start_warmup_multiplier: float | None = ..., constant_warmup_num_iter: int | None = ..., linear_warmup_num_iter: int | None = ..., cyclical_max_lr: float | None = ..., cyclical_step_size: int | None = ..., cyclical_decay: float | None = ..., cosine_min_lr: float | None = ..., cosine_max_lr: float | None = ..., cosine_period: int | None = ..., cosine_t_mult: float | None = ..., cosine_lr_shrink: float | None = ..., sub_policy_num_iters: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """iteration -> lr. lr = ``base_lr`` times the factor of the policy at the iteration; see ``rate_policies``."""
    def LearningRateAdaption(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, lr_alpha: float | None = ..., normalized_lr_adaption: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lr, grad, effgrad -> output_lr. lr' = lr * (1 - lr_alpha * cosine(G, E)), or lr - lr_alpha * <G, E> without ``normalized_lr_adaption``."""
    def LengthsGather(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths, indices -> Y. Y = the rows of the segments ``indices``, concatenated. No gradient."""
    def LengthsIndicesInGradientMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths, X -> dX. dX = for each row of X, its segment's row of dY divided by the segment's length."""
    def LengthsIndicesInGradientSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths, X -> dX. dX = for each row of X, its segment's row of dY."""
    def LengthsMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y[s] = the elementwise maximum of the rows of segment s; 0 for a segment of length 0."""
    def LengthsMaxWithMainInputAndForwardOutputGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY, lengths, X -> dX. dX = dY of the segment where X is the segment's maximum (at all of them, if several are equal), else 0."""
    def LengthsMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y[s] = the mean of the rows of segment s, 0 for a segment of length 0."""
    def LengthsMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths -> dX. For each row of a segment, the segment's row of dY divided by the segment's length."""
    def LengthsPad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, target_length: int | None = ..., padding_value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y = the segments, each padded to ``target_length`` rows with ``padding_value``. Not differentiable."""
    def LengthsPartition(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pack_first_input: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """lengths, keys, others* -> partitions+. As Partition, for segments: the first input holds their lengths, and each part gets the lengths of its own."""
    def LengthsRangeFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y = 0, 1, ..., lengths[i] - 1 for each i, concatenated."""
    def LengthsSplit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, n_split: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, n_split? -> Y. Y = each length split into n parts, as equal as possible, longer ones first: 9, 4 by 3 give 3, 3, 3, 2, 1, 1."""
    def LengthsSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y[s] = the sum of the rows of segment s; the first ``lengths[0]`` rows of X are segment 0, and so on."""
    def LengthsSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths -> dX. For each row of a segment, the segment's row of dY."""
    def LengthsTile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y = each row X[i] repeated lengths[i] times."""
    def LengthsToOffsets(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, include_last_offset: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y[s] = the first row of segment s, int32; with ``include_last_offset`` the number of rows follows."""
    def LengthsToRanges(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y[s] = the first row of segment s and its length, int32."""
    def LengthsToSegmentIds(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y = the number of each row's segment, int32: lengths 2, 0, 1 give 0, 0, 2."""
    def LengthsToShape(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y = (the number of segments, their common length), int32."""
    def LengthsToWeights(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, power: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths -> Y. Y = for each row 1 / (length of its segment) ** ``power``, float32."""
    def LengthsTopK(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, k: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths -> values, indices. The ``k`` largest elements of each segment of a vector, descending, and their positions in it (int32)."""
    def LengthsTopKGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, k: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, indices, dvalues -> dX. dX = dvalues at the positions of the chosen elements, 0 elsewhere."""
    def LengthsWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, lengths -> Y. Y[s] = the sum of the rows of segment s, each times its weight."""
    def LengthsWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, lengths -> dX. dX = for each row of X, its segment's row of dY times its weight."""
    def LengthsWeightedSumWithMainInputGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """weights, dY, lengths, X -> dX, dweights. dX as LengthsWeightedSumGradient; dweights = the inner products of the rows of X and of their segments' dY."""
    def Load(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db: str | None = ..., dbs: Sequence[str] | None = ..., db_type: str | None = ..., absolute_path: bool | int | None = ..., add_prefix: str | None = ..., strip_prefix: str | None = ..., source_blob_names: Sequence[str] | None = ..., keep_device: bool | int | None = ..., load_all: bool | int | None = ..., allow_incomplete: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """reader* -> blob*. Read blobs from files (``db``, or several ``dbs``), or from readers given as inputs."""
    def Log(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the natural logarithm of X."""
    def Log1p(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the natural logarithm of 1 + X, accurate for small X too."""
    def Log1pGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / (1 + X)."""
    def LogFatal(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """() -> (). Fail: a net should not reach this operator. (In Caffe2 it ends the process.)"""
    def LogSoftmax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X - log(sum(exp(X))), the sum taken along ``axis`` alone."""
    def LogSoftmaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY - exp(Y) * sum(dY), the sum taken along ``axis``."""
    def Logit(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, eps: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = log(p / (1 - p)), where p is X clipped to [eps, 1 - eps]."""
    def LogitGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, eps: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / (X * (1 - X)) where X is in [eps, 1 - eps], else 0."""
    def LongIndexCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, max_elements: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> index. Create an index of int64 keys, with capacity for ``max_elements`` numbers, 0 included."""
    def LookupRows(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, rows: Sequence[int] | None = ..., from_end: Sequence[bool | int] | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, table_and_indices+ -> rows_and_numbers+. Look up rows of tables that are divided over the processes: each gets those that its indices name."""
    def LpNorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, p: int | None = ..., average: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of abs(X) (``p`` = 1) or of X * X (``p`` = 2) over all elements; with ``average`` their mean."""
    def LpNormGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, p: int | None = ..., average: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY * sign(X), or dY * 2 * X for ``p`` = 2; with ``average`` divided by the number of elements."""
    def LpPool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., p: float | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = (sum of |X|^p)^(1/p) of each window; pads are 0."""
    def LpPoolGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., p: float | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. dX = the sum over windows of dY * sign(X) * (|X| / Y)^(p - 1), where windows with Y = 0 count as 0."""
    def MSRAFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y is normal with standard deviation sqrt(2 / fan_out), fan_out the number of elements per index of axis 1."""
    def MakeTwoClass(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = (1 - X, X) along a new last axis: the probabilities of two classes from that of the second."""
    def MakeTwoClassGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY -> dX. dX = dY[..., 1] - dY[..., 0]."""
    def MapToKeyValue(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """map -> keys, values. The keys of a map, in any order, and their values."""
    def MarginRankingCriterion(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, margin: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X1, X2, Y -> loss. loss = max(0, margin - Y * (X1 - X2)): with Y = 1, X1 should be the greater by the margin, with Y = -1, X2."""
    def MarginRankingCriterionGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, margin: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X1, X2, Y, dloss -> dX1, dX2. dX1 = -Y * dloss where the loss is positive, else 0; dX2 = -dX1."""
    def MatMul(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis_a: int | None = ..., axis_b: int | None = ..., trans_a: bool | int | None = ..., trans_b: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """A, B, like? -> Y. Y = A B, with A and B flattened to matrices at ``axis_a`` and ``axis_b``."""
    def Max(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = the largest of X0, X1, ..., element by element."""
    def MaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """Y, dY, X+ -> dX+. dXi = dY where Xi is the largest, else 0; where inputs tie, each gets the whole dY."""
    def MaxPool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the maximum of each window; pads are ignored."""
    def MaxPool1D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. MaxPool of images with one axis."""
    def MaxPool1DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. MaxPoolGradient of images with one axis."""
    def MaxPool2D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. MaxPool of images with two axes."""
    def MaxPool2DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. MaxPoolGradient of images with two axes."""
    def MaxPool3D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. MaxPool of images with three axes."""
    def MaxPool3DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. MaxPoolGradient of images with three axes."""
    def MaxPoolGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, Y, dY -> dX. dX = each element of dY added at every element of its window that equals the maximum."""
    def MaxPoolWithIndex(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X -> Y, Index. Y = the maximum of each window; Index = its position in the image plane, the first of ties. Pads are ignored."""
    def MaxPoolWithIndexGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, kernel: int | None = ..., kernel_h: int | None = ..., kernel_w: int | None = ..., kernels: Sequence[int] | None = ..., stride: int | None = ..., stride_h: int | None = ..., stride_w: int | None = ..., strides: Sequence[int] | None = ..., dilation: int | None = ..., dilation_h: int | None = ..., dilation_w: int | None = ..., dilations: Sequence[int] | None = ..., pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., legacy_pad: int | None = ..., order: str | None = ..., global_pooling: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, dY, Index -> dX. dX = each element of dY added at its Index in the image plane."""
    def Mean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = (X0 + X1 + ...) / number of inputs."""
    def MeanDivisor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, of: str | None = ..., axis: int | None = ..., axes: Sequence[int] | None = ..., weighted: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, others* -> Y. Y = the number by which a share of a batch divides a mean; 0 for a share without samples."""
    def MeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """dY -> dX+. Each output is dY / number of outputs."""
    def MergeDenseFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """X, presence -> lengths, keys, values. Merge the columns of X, one per feature; values that are not present are left out. No gradient."""
    def MergeDim(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data -> reshaped. reshaped = data with its first two axes merged. No gradient."""
    def MergeIdLists(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """lists+ -> lengths, values. values = the distinct ids in all lists of each sample, ascending; lengths = the number of each sample's."""
    def MergeMultiListFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values_lengths, values. Merge lists of keys with one list of values per key."""
    def MergeMultiListFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def MergeMultiMapFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values_lengths, values_keys, values. Merge lists of keys with one map, keys and values, per key."""
    def MergeMultiMapFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def MergeMultiScalarFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values. Merge lists of keys with one value per key."""
    def MergeMultiScalarFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def MergeSingleListFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values_lengths, values. Merge features with one list of values per sample; lists that are not present are left out."""
    def MergeSingleListFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def MergeSingleMapFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values_lengths, values_keys, values. Merge features with one map, keys and values, per sample; maps that are not present are left out."""
    def MergeSingleMapFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def MergeSingleScalarFeatureTensors(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> lengths, keys, values. Merge features with one value per sample; values that are not present are left out."""
    def MergeSingleScalarFeatureTensorsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, feature_ids: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """features+ -> dvalues+. Gradients of the features' values from that of the merged ones."""
    def Min(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = the smallest of X0, X1, ..., element by element."""
    def MinGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """Y, dY, X+ -> dX+. dXi = dY where Xi is the smallest, else 0; where inputs tie, each gets the whole dY."""
    def Mish(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X * tanh(log(1 + exp(X)))."""
    def MishGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY -> dX. dX = dY * (t + X * (1 - t * t) / (1 + exp(-X))), where t = tanh(log(1 + exp(X)))."""
    def Mod(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, divisor: int | None = ..., sign_follow_divisor: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, D? -> Y. Y = the remainder of X / ``divisor``, with the sign of X or, with ``sign_follow_divisor``, of the divisor."""
    def Moments(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """data -> mean, variance. Mean and variance (biased) of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def MomentsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dmean, dvariance, data, mean -> ddata. dX = (dmean + 2 * (X - mean) * dvariance) / the number of elements per mean."""
    def MomentumSGD(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., nesterov: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, moment, lr -> output_grad, output_moment. M' = momentum * M + lr * G; the step is M' or, with ``nesterov``, (1 + momentum) * M' - momentum * M."""
    def MomentumSGDUpdate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., nesterov: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, moment, lr, param -> output_grad, output_moment, output_param. MomentumSGD, and the update of the parameter: P' = P - step."""
    def Mul(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A * B."""
    def MulGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, A, B -> dA, dB. dA = dY * B and dB = dY * A, each summed over the axes along which its operand was broadcast."""
    def MultiClassAccuracy(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """prediction, labels -> accuracies, amounts. For each class, the fraction of its samples that are classified correctly, and the number of its samples."""
    def NCCLAllGather(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Every output holds all inputs, stacked along a new first axis."""
    def NCCLAllreduce(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Every output is the sum of the inputs."""
    def NCCLBroadcast(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, root: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Every output is the input of replica ``root``."""
    def NCCLReduce(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, root: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. The output, on the device of replica ``root``, is the sum of the inputs."""
    def NCHW2NHWC(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with the channel axis moved from axis 1 to the last axis."""
    def NE(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = whether A differs from B, element by element. No gradient."""
    def NGramFromCategorical(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, col_ids: Sequence[int] | None = ..., categorical_limits: Sequence[int] | None = ..., vals: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = for each row of X, the number of its combination of categories."""
    def NHWC2NCHW(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with the channel axis moved from the last axis to axis 1."""
    def NanCheck(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """tensor, others* -> output. output = tensor; fail if an element is infinite or NaN. Further inputs are ignored."""
    def NegateGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X; the gradient of X is that of Y with its sign changed, for adversarial training."""
    def Negative(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = -X."""
    def NonMaxSuppression(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, center_point_box: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """boxes, scores, max_boxes, iou_threshold, score_threshold -> selected. selected = (image, class, box) of the boxes that are kept, by image, by class, by descending score."""
    def NonZero(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the indices of the elements that are not 0, in order: a row for each axis of X. No gradient."""
    def Normalize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X / max(the Euclidean norm of X along ``axis``, 1e-12)."""
    def NormalizeGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / n - X * sum(X * dY) / n^3, where n is the norm that Normalize divides by."""
    def NormalizeImages(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mean: Sequence[float] | None = ..., std: Sequence[float] | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = (X - mean) / std for each channel: X has the pixels of decoded images, Y is the input of a net."""
    def NormalizeL1(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X / the sum of abs(X) along ``axis``, 0 where that is 0. No gradient."""
    def NormalizePlanarYUV(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, M, S -> Y. Y = (X - M) / S per channel; the first rows of M and S are the means and deviations. No gradient."""
    def Not(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = not X, element by element. No gradient."""
    def NumpyTile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, repeats -> Y. Y = X repeated ``repeats[i]`` times along each axis i, as numpy.tile does. No gradient."""
    def ONNXGRU(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, hidden_size: int | None = ..., direction: str | None = ..., given: Sequence[str] | None = ..., activations: Sequence[str] | None = ..., clip: float | None = ..., layout: int | None = ..., linear_before_reset: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, R, more* -> Y, Y_h. H' = (1 - z) * o + z * H with the gates z, r, o, in this order in W, R and B."""
    def ONNXLSTM(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, hidden_size: int | None = ..., direction: str | None = ..., given: Sequence[str] | None = ..., activations: Sequence[str] | None = ..., clip: float | None = ..., layout: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, R, more* -> Y, Y_h, Y_c. C' = f * C + i * g and H' = o * h(C') with the gates i, o, f, g, in this order in W, R and B."""
    def ONNXNode(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, node: bytes | str | None = ..., reads: Sequence[str] | None = ..., opsets: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """X* -> Y+. Run a node with ONNX's reference implementation, on the host; the shapes of outputs are known only afterwards."""
    def ONNXRNN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, hidden_size: int | None = ..., direction: str | None = ..., given: Sequence[str] | None = ..., activations: Sequence[str] | None = ..., clip: float | None = ..., layout: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, W, R, more* -> Y, Y_h. H' = f(X W + H R + B), for each step of each direction."""
    def ONNXWhile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, body: NetDef | bytes | None = ..., has_trip_count: bool | int | None = ..., has_cond: bool | int | None = ..., save_scopes: bool | int | None = ..., disable_scopes: bool | int | None = ..., captured: int | None = ..., given_empty: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """max_trip_count, first_iter_condition, initial* -> final_and_scan*. Run ``body`` up to ``max_trip_count`` times (with ``has_trip_count``), while the condition holds (``has_cond``)."""
    def OneHot(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, index_size -> Y. Y[i] = a row of zeros (float32) with 1 at indices[i]; index_size, of one element, is the length of the rows."""
    def Or(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A or B, element by element. No gradient."""
    def PRelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, slope -> Y. Y = X where X > 0, else slope * X, with a slope per channel or one for all."""
    def PReluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """Y, dY, X, slope -> dX, dslope. dX = dY where X > 0, else slope * dY; dslope is the sum of dY * X over where X <= 0, per slope."""
    def PSRoIPool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., group_size: int | None = ..., output_dim: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, RoIs -> Y, mapping_channel. Y = the means of a grid of bins of each box; 0 for an empty bin."""
    def PSRoIPoolGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., group_size: int | None = ..., output_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, RoIs, mapping_channel, dY -> dX. dX = each element of dY, divided by the size of its bin, added at all pixels of the bin."""
    def PackRNNSequence(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """values, lengths, like? -> Y. Y[t, n] = element t of sequence n, or 0 after its end. Y has as many steps as the longest sequence."""
    def PackRecords(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fields: Sequence[str] | None = ..., pack_to_single_shared_ptr: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """field+ -> packed. packed = objects, one per row of a record, or a single one for all rows with ``pack_to_single_shared_ptr``."""
    def PackSegments(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, max_length: int | None = ..., pad_minf: bool | int | None = ..., return_presence_mask: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """lengths, X -> Y, presence?. Y[s] = the rows of segment s, then padding up to the longest segment, or to ``max_length``."""
    def PackedInt8BGRANHWCToNCHWCStylizerPreprocess(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, noise_std: float | None = ..., noise_size: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, mean -> Y. Y = X - mean + noise for the first three channels of X, as channels-first images."""
    def Pad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pads: Sequence[int] | None = ..., mode: str | None = ..., value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with a border: of a ``value``, of X mirrored, of its edge repeated, or of its other end."""
    def PadEmptySamples(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """lengths, features* -> lengths_out, features_out*. Samples without rows get one row of zeros; ``lengths`` has the number of rows of each sample in each feature."""
    def PadGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pads: Sequence[int] | None = ..., mode: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY -> dX. dX = dY inside the border, and each element of the border added to the one that it was copied from."""
    def PadImage(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., mode: str | None = ..., value: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = the images X with a border, by ``mode``: of a ``value``, of X mirrored, or of the edge of X repeated."""
    def PadImageGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., pads: Sequence[int] | None = ..., mode: str | None = ..., value: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """dY -> dX. dX = dY inside the border, and each element of the border added to the pixel that it was copied from."""
    def PairWiseLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label, lengths? -> Y. Y = for each session, the mean of log(1 + exp(X[j] - X[i])) over its pairs with label[i] > label[j]."""
    def PairWiseLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, label, dY, lengths? -> dX. dX of PairWiseLoss."""
    def ParallelDo(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, net: NetDef | bytes | None = ..., devices: Sequence[int] | None = ..., device_type: int | None = ..., inner_inputs: Sequence[str] | None = ..., modes: Sequence[str] | None = ..., inner_outputs: Sequence[str] | None = ..., merge: Sequence[str] | None = ..., use_nccl: bool | int | None = ..., combine_spatial_bn: bool | int | None = ..., kept: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Run ``net`` on several devices at the same time, each with a share of the batch, and merge the outputs."""
    def ParallelDoGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, net: NetDef | bytes | None = ..., devices: Sequence[int] | None = ..., device_type: int | None = ..., inner_inputs: Sequence[str] | None = ..., modes: Sequence[str] | None = ..., inner_outputs: Sequence[str] | None = ..., merge: Sequence[str] | None = ..., use_nccl: bool | int | None = ..., combine_spatial_bn: bool | int | None = ..., rows: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """shares, X* -> dX*. The gradients of the inputs of a ParallelDo, on the devices and from the shares of its last run."""
    def Partition(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pack_first_input: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """keys, others* -> partitions+. Partition keys and the rows that belong to them; the part is the key modulo the number of parts."""
    def Percentile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """original_values, value_to_pct, lengths -> percentile_values. percentile_values = the percentile of each value, interpolated linearly between samples. No gradient."""
    def Perplexity(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """probabilities -> output. output = exp(-mean(log(probabilities))), a scalar, of the probability of each sample's label. No gradient."""
    def PiecewiseLinearTransform(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, bounds: Sequence[float] | None = ..., slopes: Sequence[float] | None = ..., intercepts: Sequence[float] | None = ..., binary: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """predictions, bounds?, slopes?, intercepts? -> transforms. transforms = predictions, each column transformed by a piecewise linear function of its own."""
    def Pow(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., exponent: float | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, E? -> Y. Y = X to the power of ``exponent``, or of the second input, which is broadcast as in Add."""
    def PowGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, X, E, Y -> dX, dE. dX = dY * E * X^(E - 1) and dE = dY * Y * log(X), each summed over the axes along which it was broadcast."""
    def PrependDim(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dim_size: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data -> reshaped. reshaped = data with its first axis split in two, of extents ``dim_size`` and N / ``dim_size``."""
    def Print(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, to_file: bool | int | None = ..., limit: int | None = ..., every_n: int | None = ..., **common: Unpack[_Common]) -> Any:
        """tensor -> (). Write name, type, shape and elements of a blob to standard output, on one line."""
    def PythonGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, token: str | None = ..., grad_output_indices: Sequence[int] | None = ..., grad_input_indices: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """X* -> dX*. Run the gradient function registered under ``token``."""
    def QuantDecode(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """codebook, codes+ -> decoded+. decoded = for each tensor of codes, the elements of ``codebook`` at these indices."""
    def QuantDecodeGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """codebook, codes_and_gradients+ -> dcodebook. dcodebook = for each element, the sum of the gradients of the elements that were decoded to it."""
    def Quantile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, quantile: float | None = ..., abs: bool | int | None = ..., tol: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> quantile_value. A value that at least the fraction ``quantile`` of the elements of all inputs does not exceed. No gradient."""
    def RMACRegions(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scales: int | None = ..., overlap: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> RMAC_REGIONS. Regions of the images X, rows (image, x1, y1, x2, y2) as RoIPool takes them. No gradient."""
    def RMSNorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., eps: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X, gamma, beta -> Y, rrms. Y = X * rrms * gamma + beta, with rrms = 1 / sqrt(mean of X^2 + eps) over all axes from ``axis`` on."""
    def RMSNormGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., eps: float | None = ..., **common: Unpack[_Common]) -> Any:
        """dY, X, gamma, rrms -> dX, dgamma, dbeta. Gradients of RMSNorm: of X, gamma and beta."""
    def Range(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """first, second?, step? -> Y. Y = start, start + step, ... before stop; the inputs are stop, or start and stop, or those and step."""
    def RangeFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y = 0, 1, 2, ... in row-major order, float32."""
    def ReadNextBatch(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_size: int | None = ..., enforce_batch_size: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """cursor, field+ -> field+. Return the next ``batch_size`` rows of a record, with the elements that lengths assign to them, and advance."""
    def ReadRandomBatch(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_size: int | None = ..., enforce_batch_size: bool | int | None = ..., loop_over: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """cursor, indices, offsets, field+ -> field+. Return the ``batch_size`` rows of a record that are next in an order, and advance the cursor."""
    def ReceiveTensor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, src: int | None = ..., tag: int | None = ..., raw_buffer: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, Y, src?, tag? -> Y, src, tag. Receive a tensor from the process with rank ``src``; -1: from any. Likewise with its ``tag``."""
    def Reciprocal(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = 1 / X."""
    def ReciprocalGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = -dY * Y * Y."""
    def RecurrentNetwork(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, step_net: NetDef | bytes | None = ..., timestep: str | None = ..., recurrent_states: Sequence[str] | None = ..., initial_recurrent_state_ids: Sequence[int] | None = ..., link_internal: Sequence[str] | None = ..., link_external: Sequence[str] | None = ..., link_offset: Sequence[int] | None = ..., link_window: Sequence[int] | None = ..., alias_src: Sequence[str] | None = ..., alias_dst: Sequence[str] | None = ..., alias_offset: Sequence[int] | None = ..., param: Sequence[int] | None = ..., param_grads: Sequence[str] | None = ..., backward_step_net: NetDef | bytes | None = ..., backward_link_internal: Sequence[str] | None = ..., backward_link_external: Sequence[str] | None = ..., backward_link_offset: Sequence[int] | None = ..., backward_link_window: Sequence[int] | None = ..., outputs_with_grads: Sequence[int] | None = ..., recompute_blobs_on_backward: Sequence[str] | None = ..., enable_rnn_executor: int | None = ..., num_workspaces_on_fwd_only: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Run ``step_net`` over a sequence."""
    def RecurrentNetworkBlobFetcher(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, prefix: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """step_workspaces -> names. Store the blobs that a recurrent net has kept of its steps as separate blobs, and return their names."""
    def RecurrentNetworkGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, step_net: NetDef | bytes | None = ..., timestep: str | None = ..., recurrent_states: Sequence[str] | None = ..., initial_recurrent_state_ids: Sequence[int] | None = ..., link_internal: Sequence[str] | None = ..., link_external: Sequence[str] | None = ..., link_offset: Sequence[int] | None = ..., link_window: Sequence[int] | None = ..., alias_src: Sequence[str] | None = ..., alias_dst: Sequence[str] | None = ..., alias_offset: Sequence[int] | None = ..., param: Sequence[int] | None = ..., param_grads: Sequence[str] | None = ..., backward_step_net: NetDef | bytes | None = ..., backward_link_internal: Sequence[str] | None = ..., backward_link_external: Sequence[str] | None = ..., backward_link_offset: Sequence[int] | None = ..., backward_link_window: Sequence[int] | None = ..., outputs_with_grads: Sequence[int] | None = ..., recompute_blobs_on_backward: Sequence[str] | None = ..., enable_rnn_executor: int | None = ..., num_workspaces_on_fwd_only: int | None = ..., **common: Unpack[_Common]) -> Any:
        """dY* -> dX+. The gradients of RecurrentNetwork: of the first input, the inputs in ``param``, the initial states."""
    def RedisStoreHandlerCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, host: str | None = ..., port: int | None = ..., prefix: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> handler. Make a store on a Redis server, which needs the extra ``redis``; ``prefix`` begins all keys."""
    def Reduce(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, root: int | None = ..., status_blob: str | None = ..., deterministic: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """common_world, X -> Y. On the process with rank ``root``, the sum over the processes; on the others, Y = X."""
    def ReduceBackMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the maximum over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceBackMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y, lengths? -> dX. dX = dY where X is the maximum, at each of tied elements, else 0."""
    def ReduceBackMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the mean over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceBackMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, lengths? -> dX. dX = dY / the number of elements per mean; 0 beyond ``lengths``. X may be given by its shape, int64."""
    def ReduceBackSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the sum over the last ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceBackSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, lengths? -> dX. dX = dY, broadcast; 0 beyond ``lengths``. X may be given by its shape, a vector of int64."""
    def ReduceFrontMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the maximum over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceFrontMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y, lengths? -> dX. dX = dY where X is the maximum, at each of tied elements, else 0."""
    def ReduceFrontMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the mean over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceFrontMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, lengths? -> dX. dX = dY / the number of elements per mean; 0 beyond ``lengths``. X may be given by its shape, int64."""
    def ReduceFrontSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths? -> Y. Y = the sum over the first ``num_reduce_dim`` axes; with ``lengths``, of the first lengths[i] elements."""
    def ReduceFrontSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_reduce_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, lengths? -> dX. dX = dY, broadcast; 0 beyond ``lengths``. X may be given by its shape, a vector of int64."""
    def ReduceFrontWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights -> Y. Y = the sum of the rows of X, each times its weight; the weights have no gradient."""
    def ReduceFrontWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, shape -> dX. dX[i] = dY times ``weights[i]``; the third input is the shape of X."""
    def ReduceL1(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of abs(X) over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceL1Gradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY * sign(X)."""
    def ReduceL2(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the Euclidean norm of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceL2Gradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY * X / Y; dY where Y is 0."""
    def ReduceMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the maximum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY where X is the maximum, at each of tied elements, else 0."""
    def ReduceMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the mean of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY / number of elements of a mean, repeated over the reduced axes."""
    def ReduceMin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the minimum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceMinGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY where X is the minimum, at each of tied elements, else 0."""
    def ReduceProd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the product of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceProdGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY times the product of the other elements that were multiplied, also where some are 0."""
    def ReduceScatter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, status_blob: str | None = ..., deterministic: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. The first elements of every X become this process's part of the sum of all X over all processes."""
    def ReduceSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of X over ``axes``, by default all; with ``keepdims`` reduced axes keep extent 1."""
    def ReduceSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., keepdims: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X, Y -> dX. dX = dY, repeated over the reduced axes."""
    def ReduceTailSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """mat -> output. Y[i] = the sum of mat[i], for each sample i of the first axis. No gradient."""
    def ReduceToOwners(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, owners: Sequence[int] | None = ..., deterministic: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X+ -> Y+. Blob i of rank ``owners[i]`` becomes the sum over the processes; those of other ranks keep their values."""
    def Relu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = max(X, 0)."""
    def ReluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where Y > 0, else 0."""
    def ReluN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, n: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X clipped to [0, n]."""
    def ReluNGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, n: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where 0 < Y < n, else 0."""
    def RemoveDataBlocks(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data, indices -> shrunk_data. shrunk_data = the rows of ``data`` except ``indices``, which may have any order and repeats."""
    def RemovePadding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, padding_width: int | None = ..., end_padding_width: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, lengths? -> Y, lengths_out?. Y = X without the rows that AddPadding adds."""
    def ReplaceNaN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """input -> output. output = ``value`` where the input is NaN, else the input. No gradient."""
    def ReservoirSampling(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_to_collect: int | None = ..., **common: Unpack[_Common]) -> Any:
        """RESERVOIR, NUM_VISITED, DATA, MUTEX, OBJECT_ID?, OBJECT_TO_POS_MAP?, POS_TO_OBJECT? -> RESERVOIR, NUM_VISITED, OBJECT_TO_POS_MAP?, POS_TO_OBJECT?. Keep a uniform random sample of ``num_to_collect`` of the rows of DATA in all runs so far."""
    def ResetCounter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, init_count: int | None = ..., **common: Unpack[_Common]) -> Any:
        """counter -> previous_value?. Set a counter to ``init_count``; previous_value = the value before."""
    def ResetCursor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """cursor -> (). Move a cursor back to the first row."""
    def Reshape(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """X, shape? -> Y, old_shape. Y = X in another shape, given by the argument or the second input; old_shape is the shape of X."""
    def ResizeLike(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, like -> Y. Y = X in the shape of the second input, which must have the same number of elements."""
    def ResizeNearest(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, width_scale: float | None = ..., height_scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, scales? -> Y. Y = the images X with height and width scaled; each pixel is the nearest one of X above and to the left."""
    def ResizeNearest3D(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, temporal_scale: float | None = ..., height_scale: float | None = ..., width_scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the volumes X with their last three extents scaled, as by ResizeNearest."""
    def ResizeNearest3DGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, temporal_scale: float | None = ..., height_scale: float | None = ..., width_scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = the sum of dY over the copies of each pixel of X."""
    def ResizeNearestGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, width_scale: float | None = ..., height_scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """dY, X, scales? -> dX. dX = the sum of dY over the copies of each pixel of X."""
    def RestoreBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """condition, X+ -> Y+. Each Y is its X, in place, if the condition is true, and else what X was before."""
    def RetrieveCount(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """counter -> count. count = the value of a counter."""
    def ReversePackedSegs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y[t, n] = X[lengths[n] - 1 - t, n] for the first ``lengths[n]`` steps of sample n, else X[t, n]."""
    def RmsProp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, decay: float | None = ..., momentum: float | None = ..., epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, mean_squares, moment, lr -> output_grad, output_mean_squares, output_moment. S' = decay * S + (1 - decay) * G^2; M' = momentum * M + lr * G / sqrt(S' + epsilon); the step is M'."""
    def RoIAlign(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., sampling_ratio: int | None = ..., aligned: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, RoIs -> Y. Y = the means of a grid of bins of each box, from bilinear samples."""
    def RoIAlignGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., sampling_ratio: int | None = ..., aligned: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, RoIs, dY -> dX. dX = each element of dY added to the pixels of X that it was sampled from, by their weights."""
    def RoIAlignRotated(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., sampling_ratio: int | None = ..., aligned: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, RoIs -> Y. Y = the means of a grid of bins of each rotated box, from bilinear samples."""
    def RoIAlignRotatedGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, spatial_scale: float | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., sampling_ratio: int | None = ..., aligned: bool | int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, RoIs, dY -> dX. dX = each element of dY added to the pixels of X that it was sampled from, by their weights."""
    def RoIPool(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., order: str | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., spatial_scale: float | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """X, RoIs -> Y, argmaxes?. Y = the maxima of a grid of bins of each box; 0 for an empty bin."""
    def RoIPoolF(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., order: str | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., spatial_scale: float | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """X, RoIs -> Y, argmaxes?. RoIPool under the name that it has in Detectron's nets."""
    def RoIPoolFGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., order: str | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., spatial_scale: float | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> BlobReference:
        """X, RoIs, argmaxes, dY -> dX. RoIPoolGradient under the name that it has in Detectron's nets."""
    def RoIPoolGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., order: str | None = ..., pooled_h: int | None = ..., pooled_w: int | None = ..., spatial_scale: float | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> BlobReference:
        """X, RoIs, argmaxes, dY -> dX. dX = each element of dY added at the maximum of its bin."""
    def RotaryEmbedding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, inverse: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, cos, sin, positions? -> Y. Y = X with each pair of features (i, i + D / 2) of row t rotated by the angle whose cosine is cos[t, i]."""
    def Round(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the integer nearest to X, of two the even one. No gradient."""
    def RowMul(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """mat, w -> output. Y[i] = mat[i] * w[i], for each sample i of the first axis."""
    def RowWiseCounter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, counter_halflife: int | None = ..., **common: Unpack[_Common]) -> Any:
        """prev_iter, update_counter, indices, iter -> output_prev_iter, output_update_counter. Count the updates of the rows ``indices``; a count is halved every ``counter_halflife`` iterations."""
    def RowWiseSparseAdagrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., counter_halflife: int | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, counter? -> output_param, output_moment. h' = h + mean(G^2) over a row, P' = P + lr * G / (sqrt(h') + epsilon), on the rows ``indices``."""
    def RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The gradient of SparseLengthsMean and RowWiseSparseAdagrad in one."""
    def RowWiseSparseAdagradFusedWithSparseLengthsMeanGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The same as RowWiseSparseAdagradFusedWithSparseLengthsMeanGradient."""
    def RowWiseSparseAdagradFusedWithSparseLengthsSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The gradient of SparseLengthsSum and RowWiseSparseAdagrad in one: one h per row, h' = h + mean(G^2)."""
    def RowWiseSparseAdagradFusedWithSparseLengthsSumGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The same as RowWiseSparseAdagradFusedWithSparseLengthsSumGradient."""
    def RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, aux_param, indices, grad, lr, lengths -> output_param, output_moment, aux_grad. The gradient of SparseLengthsPositionalWeightedSum and RowWiseSparseAdagrad in one."""
    def RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, aux_param, indices, grad, lr, lengths -> output_param, output_moment, aux_grad. RowWiseSparseAdagradFusedWithSparseLengthsWeightedSumGradient; here ``aux_grad`` is exact."""
    def RowWiseSparseAdam(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta1: float | None = ..., beta2: float | None = ..., epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment_1, moment_2, indices, grad, lr, iter -> output_param, output_moment_1, output_moment_2, output_grad?. Adam on the rows ``indices``, with one second moment per row: the running mean of the row's mean square."""
    def RowsToOwners(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, rows: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, indices_and_values+ -> own+. Give rows, such as those of sparse gradients, to the processes that have these rows of the tables."""
    def Rowwise8BitQuantizedToFloat(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """quantized_input, scale_bias -> output. output[i] = scale_bias[i, 0] * quantized_input[i] + scale_bias[i, 1], from FloatToRowwiseQuantized8Bits."""
    def RowwiseMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the maximum of each row of each matrix."""
    def RowwiseMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY -> dX. dX = dY where X is the maximum of its row, at each of tied elements, else 0."""
    def Rsqrt(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = 1 / the square root of X."""
    def RsqrtGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, Y -> dX. dX = -dY * Y * Y * Y / 2."""
    def SafeDequeueBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_records: int | None = ..., **common: Unpack[_Common]) -> Any:
        """queue -> blob, status+. Remove ``num_records`` records of a queue; the last output is whether it was closed and empty."""
    def SafeEnqueueBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """queue, blob* -> blob, status+. As EnqueueBlobs; the last output is whether the queue was closed and full, so that nothing was added."""
    def SampleAs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, labels -> Y. Y = the samples of X whose label is positive."""
    def SampleAsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, labels, dY -> dX. dX = dY for the samples whose label is positive, 0 for the others."""
    def Save(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db: str | None = ..., db_type: str | None = ..., absolute_path: bool | int | None = ..., strip_prefix: str | None = ..., blob_name_overrides: Sequence[str] | None = ..., chunk_size: int | None = ..., options: bytes | str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> (). Write blobs to a file, completely or not at all; an existing file is replaced."""
    def SaveBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Each Y is a copy of its X, for RestoreBlobs."""
    def Scale(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = scale * X."""
    def ScaleBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Each output is its input times ``scale``. No gradient."""
    def Scatter(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, updates -> Y. Y = X with elements replaced along ``axis``: Y[i, indices[i, j]] = updates[i, j] for axis 1. No gradient."""
    def ScatterAssign(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, rows -> Y. X[indices] = rows along ``axis``, in place; if an index is repeated, one of its rows is used."""
    def ScatterElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., reduction: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, updates -> Y. Y = X, but Y[indices[i, j], j] = updates[i, j] for ``axis`` 0, Y[i, indices[i, j]] for axis 1, and so on."""
    def ScatterElementsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., reduction: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, dY -> dX. dX = dY, but 0 where an update took the element's place."""
    def ScatterND(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_dims: int | None = ..., reduction: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, updates -> Y. Y = X, but Y[indices[i, 0], indices[i, 1], ...] = updates[i], an element or a slice."""
    def ScatterNDGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_dims: int | None = ..., reduction: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, dY -> dX. dX = dY, but 0 where an update took the element's place."""
    def ScatterWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, w0, indices, X1, w1, more* -> Y. X[indices] = w0 * X[indices] + w1 * X1 + w2 * X2 + ..., in place."""
    def SegmentIdsToLengths(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """segments, like? -> Y. Y = the number of rows of each segment, int32: segments 0, 0, 2 give 2, 0, 1."""
    def SegmentIdsToRanges(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """segments, like? -> Y. Y[s] = the first row of segment s and its number of rows, int32; see SegmentIdsToLengths."""
    def SegmentOneHot(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, indices, index_size -> Y. Y[s, i] = 1 if index i is in segment s, else 0; ``index_size`` is the number of columns."""
    def SelectSmoothL1Loss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y_hat, Y, locations, normalizer -> loss. loss = scale / max(normalizer, 1) * sum(f(Y_hat at the positions - Y)), with f as in SmoothL1Loss."""
    def SelectSmoothL1LossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y_hat, Y, locations, normalizer, dloss -> dY_hat. The gradient of SelectSmoothL1Loss with respect to Y_hat: 0 except at the positions, summed where they repeat."""
    def SelfBinningHistogram(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_bins: int | None = ..., bin_spacing: str | None = ..., logspace_start: float | None = ..., abs: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> histogram_values, histogram_counts. histogram_values = ``num_bins`` + 1 edges, evenly spaced from the smallest value of all inputs. No gradient."""
    def Selu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = scale * X where X > 0, else scale * alpha * (exp(X) - 1)."""
    def SeluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = scale * dY where Y > 0, else dY * (Y + scale * alpha)."""
    def SendTensor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dst: int | None = ..., tag: int | None = ..., raw_buffer: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """common_world, X, dst?, tag? -> (). Send a tensor to the process with rank ``dst``, which runs ReceiveTensor."""
    def SequenceMask(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mode: str | None = ..., axis: int | None = ..., repeat_from_axis: int | None = ..., radius: int | None = ..., fill_val: float | None = ..., grad: bool | int | None = ..., batch: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, numbers? -> Y. Y = X with ``fill_val`` at masked positions of X, flattened to a matrix at ``axis``."""
    def Shape(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the shape of X, or the extents of ``axes``. No gradient."""
    def Sigmoid(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = 1 / (1 + exp(-X))."""
    def SigmoidCrossEntropyLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., normalize: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, targets -> loss. loss = ``scale`` times the mean of -ln(sigmoid(X)) where targets is 1, and of -ln(1 - sigmoid(X)) where it is 0."""
    def SigmoidCrossEntropyLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., normalize: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, targets, d_loss -> dX. dX = d_loss * (sigmoid(X) - targets), with the factor of the loss; 0 where the target is -1."""
    def SigmoidCrossEntropyWithLogits(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, log_D_trick: bool | int | None = ..., unjoined_lr_loss: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """logits, targets -> Y. Y = the mean over the last axis of -(t * log s + (1 - t) * log(1 - s)); s = sigmoid(logits), t = targets."""
    def SigmoidCrossEntropyWithLogitsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, log_D_trick: bool | int | None = ..., unjoined_lr_loss: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, logits, targets -> dlogits. dlogits of SigmoidCrossEntropyWithLogits; targets have no gradient."""
    def SigmoidFocalLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., scale: float | None = ..., alpha: float | None = ..., gamma: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, labels, normalizer -> loss. loss = ``scale`` * the sum of the focal losses of all classes / max(1, normalizer)."""
    def SigmoidFocalLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., scale: float | None = ..., alpha: float | None = ..., gamma: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, labels, normalizer, d_loss -> dX. The gradient of SigmoidFocalLoss."""
    def SigmoidGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY * Y * (1 - Y)."""
    def Sign(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = -1, 0 or 1, the sign of X. No gradient."""
    def Sin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sine of X, in radians."""
    def SinGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY * cos(X)."""
    def Sinh(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = (exp(X) - exp(-X)) / 2."""
    def SinhGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, X -> dX. dX = dY * cosh(X)."""
    def SinusoidPositionEncoding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, embedding_size: int | None = ..., alpha: float | None = ..., amplitude: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """positions -> output. output[m, k, i] = ``amplitude`` * sin(p / ``alpha``^(i / ``embedding_size``)) for even i, cos for odd i."""
    def Size(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the number of elements of X, a scalar. No gradient."""
    def Slice(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, starts: Sequence[int] | None = ..., ends: Sequence[int] | None = ..., steps: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, starts?, ends? -> Y. Y = X from ``starts`` to before ``ends``, which may be given as the second and third input."""
    def SliceGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, starts: Sequence[int] | None = ..., ends: Sequence[int] | None = ..., steps: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, starts_or_dY, ends?, dY? -> dX. dX = dY in the slice, 0 elsewhere; the inputs are X, then starts and ends if Slice had them, then dY."""
    def SmartDecaySparseAdam(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta1: float | None = ..., beta2: float | None = ..., epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment_1, moment_2, last_seen, indices, grad, lr, iter -> output_param, output_moment_1, output_moment_2, output_last_seen. Adam on the rows ``indices``, including the steps of the iterations in which they were not touched."""
    def SmoothL1Loss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y_hat, Y, alpha_in, alpha_out -> loss. loss = scale / N * sum(alpha_out * f(alpha_in * (Y_hat - Y))), where N is the number of samples."""
    def SmoothL1LossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta: float | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y_hat, Y, alpha_in, alpha_out, dloss -> dY_hat. The gradient of SmoothL1Loss with respect to Y_hat; labels and weights have no gradient."""
    def Snapshot(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, db: str | None = ..., db_type: str | None = ..., absolute_path: bool | int | None = ..., strip_prefix: str | None = ..., blob_name_overrides: Sequence[str] | None = ..., chunk_size: int | None = ..., options: bytes | str | None = ..., every: int | None = ..., **common: Unpack[_Common]) -> Any:
        """iter, X* -> (). The old name of Checkpoint."""
    def Softmax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = exp(X) / sum(exp(X)), the sum taken over all axes from ``axis`` on."""
    def SoftmaxFocalLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., scale: float | None = ..., alpha: float | None = ..., gamma: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X, labels, normalizer -> loss, probabilities. loss = ``scale`` * the sum of the anchors' focal losses / max(1, normalizer); and the softmax of each anchor."""
    def SoftmaxFocalLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_classes: int | None = ..., scale: float | None = ..., alpha: float | None = ..., gamma: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, labels, normalizer, probabilities, d_loss -> dX. The gradient of SoftmaxFocalLoss; the gradient of its probabilities is ignored."""
    def SoftmaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = Y * (dY - sum(dY * Y)), the sum taken over all axes from ``axis`` on."""
    def SoftmaxWithLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., label_prob: bool | int | None = ..., average_by_batch_size: bool | int | None = ..., axis: int | None = ..., order: str | None = ..., only_loss: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, label, weight? -> P, loss. P = softmax(X) by rows; loss = scale * the mean of -log P[i, label[i]]."""
    def SoftmaxWithLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., label_prob: bool | int | None = ..., average_by_batch_size: bool | int | None = ..., axis: int | None = ..., order: str | None = ..., only_loss: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, label, weight_or_P, P_or_dloss, dloss? -> dX. dX of SoftmaxWithLoss: (P - label) * weight * dloss * scale / the divisor of the mean."""
    def Softplus(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = log(1 + exp(X)), computed so that it does not overflow."""
    def SoftplusGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY * (1 - exp(-Y))."""
    def Softsign(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X / (1 + |X|)."""
    def SoftsignGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / (1 + |X|) ** 2."""
    def SortAndShuffle(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, sort_by_field_idx: int | None = ..., batch_size: int | None = ..., shuffle_size: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """cursor, field+ -> indices. indices = an order of the rows of a record."""
    def SortedSegmentMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the mean of the rows of X whose segment is s; the ids are sorted, without gaps."""
    def SortedSegmentMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. dX[i] = dY[segments[i]] / number of rows in that segment."""
    def SortedSegmentRangeLogMeanExp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = log(mean of exp(X)) over the rows of X whose segment is s."""
    def SortedSegmentRangeLogMeanExpGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY, segments -> dX. dX = dY of the segment times exp(X - Y), divided by the segment's number of rows."""
    def SortedSegmentRangeLogSumExp(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = log(sum of exp(X)) over the rows of X whose segment is s."""
    def SortedSegmentRangeLogSumExpGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY, segments -> dX. dX = dY of the segment times exp(X - Y)."""
    def SortedSegmentRangeMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the elementwise maximum of the rows of X whose segment is s."""
    def SortedSegmentRangeMaxGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY, segments -> dX. dX = dY of the segment where X is the segment's maximum (at all of them, if several are equal), else 0."""
    def SortedSegmentRangeMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the mean of the rows of X whose segment is s."""
    def SortedSegmentRangeMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY, segments -> dX. dX[i] = dY of the segment of row i, divided by the segment's number of rows."""
    def SortedSegmentRangeSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the sum of the rows of X whose segment is s."""
    def SortedSegmentRangeSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY, segments -> dX. dX[i] = dY of the segment of row i."""
    def SortedSegmentSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the sum of the rows of X whose segment is s; the ids are sorted, without gaps."""
    def SortedSegmentSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. dX[i] = dY[segments[i]]."""
    def SortedSegmentWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, segments -> Y. Y[s] = the sum of the rows of X whose segment is s, each times its weight; weights get no gradient."""
    def SortedSegmentWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, segments -> dX. dX[i] = dY[segments[i]] times ``weights[i]``."""
    def SpaceToBatch(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, pad: int | None = ..., pad_t: int | None = ..., pad_l: int | None = ..., pad_b: int | None = ..., pad_r: int | None = ..., block_size: int | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X -> Y. Y = every ``block_size``-th row and column of the images X, padded with zeros, one sample for each start."""
    def SparseAdadelta(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, moment_delta, indices, grad, lr -> output_param, output_moment, output_moment_delta. Adadelta on the rows ``indices`` of a table."""
    def SparseAdagrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr -> output_param, output_moment_1. Adagrad on the rows ``indices`` of a table; a row that occurs several times is updated each time, in order."""
    def SparseAdagradFusedWithSparseLengthsMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The gradient of SparseLengthsMean and SparseAdagrad in one: G is divided by the segment's length."""
    def SparseAdagradFusedWithSparseLengthsMeanGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The same as SparseAdagradFusedWithSparseLengthsMeanGradient."""
    def SparseAdagradFusedWithSparseLengthsSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The gradient of SparseLengthsSum and SparseAdagrad in one: P' = P + lr * G / (sqrt(h') + epsilon), h' = h + G^2."""
    def SparseAdagradFusedWithSparseLengthsSumGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, indices, grad, lr, lengths -> output_param, output_moment. The same as SparseAdagradFusedWithSparseLengthsSumGradient."""
    def SparseAdagradFusedWithSparseLengthsWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, aux_param, indices, grad, lr, lengths -> output_param, output_moment, aux_grad. The gradient of SparseLengthsPositionalWeightedSum and SparseAdagrad in one."""
    def SparseAdagradFusedWithSparseLengthsWeightedSumGradientApprox(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., weight_decay: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, aux_param, indices, grad, lr, lengths -> output_param, output_moment, aux_grad. SparseAdagradFusedWithSparseLengthsWeightedSumGradient; here ``aux_grad`` is exact."""
    def SparseAdam(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta1: float | None = ..., beta2: float | None = ..., epsilon: float | None = ..., enableRAdam: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment_1, moment_2, indices, grad, lr, iter -> output_param, output_moment_1, output_moment_2, output_grad?. Adam on the rows ``indices`` of a table; the moments of other rows stay as they are."""
    def SparseDropoutWithReplacement(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, ratio: float | None = ..., replacement_value: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Lengths -> Y, OutputLengths. Replace all ids of a sample, with probability ``ratio``, by the single id ``replacement_value``."""
    def SparseFtrl(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., beta: float | None = ..., lambda1: float | None = ..., lambda2: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, n_z, indices, grad, alpha? -> output_param, output_n_z. Ftrl on the rows ``indices`` of a table; a fifth input replaces ``alpha``."""
    def SparseItemwiseDropoutWithReplacement(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, ratio: float | None = ..., replacement_value: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Lengths -> Y, OutputLengths. Replace each id, with probability ``ratio``, by ``replacement_value``; OutputLengths is Lengths."""
    def SparseLengthsIndicesInGradientMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths, indices -> values. values = for each index, its segment's row of dY divided by the segment's length."""
    def SparseLengthsIndicesInGradientSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths, indices -> values. values = for each index, its segment's row of dY."""
    def SparseLengthsIndicesInGradientWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, lengths, indices -> values. values = for each index, its segment's row of dY times the weight of the index."""
    def SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """weights, dY, lengths, X, indices -> values, dweights. values as without the main input; dweights = the inner products of the rows of X and of their segments' dY."""
    def SparseLengthsMax(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, lengths -> Y. Y[s] = the elementwise maximum of the rows X[i] over the indices i of segment s, 0 for one of length 0."""
    def SparseLengthsMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, lengths -> Y. Y[s] = the mean of the rows X[i] over the indices i of segment s, 0 for one of length 0."""
    def SparseLengthsMean2BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsMeanFused2BitRowwise over a pruned table; pruned rows count in the number of rows."""
    def SparseLengthsMean4BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsMeanFused4BitRowwise over a pruned table; pruned rows count in the number of rows."""
    def SparseLengthsMean8BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsMeanFused8BitRowwise over a pruned table; pruned rows count in the number of rows."""
    def SparseLengthsMean8BitsRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, scale_bias -> output. output[s] = the mean of the rows at the indices of segment s, of codes with scale and bias; 0 without any."""
    def SparseLengthsMeanFused2BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the mean of the rows at the indices of segment s, of a fused 2-bit table; 0 without any."""
    def SparseLengthsMeanFused4BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the mean of the rows at the indices of segment s, of a fused 4-bit table; 0 without any."""
    def SparseLengthsMeanFused8BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the mean of the rows at the indices of segment s, of a fused 8-bit table; 0 without any."""
    def SparseLengthsMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths -> dX. For each index of a segment, the segment's row of dY divided by the segment's length."""
    def SparseLengthsPositionalWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, indices, lengths -> Y. As SparseLengthsWeightedSum, but with weights by position: ``weights[k]`` for index k of each segment."""
    def SparseLengthsSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, lengths -> Y. Y[s] = the sum of the rows X[i] over the indices i of segment s; the first ``lengths[0]`` indices are segment 0."""
    def SparseLengthsSum2BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsSumFused2BitRowwise over a table from which rows were pruned."""
    def SparseLengthsSum4BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsSumFused4BitRowwise over a table from which rows were pruned."""
    def SparseLengthsSum8BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsSumFused8BitRowwise over a table from which rows were pruned."""
    def SparseLengthsSum8BitsRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS, scale_bias -> output. output[s] = the sum of the rows at the indices of segment s, of codes with ``scale_bias`` (rows, 2)."""
    def SparseLengthsSumFused2BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 2-bit table."""
    def SparseLengthsSumFused4BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 4-bit table."""
    def SparseLengthsSumFused8BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, in float32, of a fused 8-bit table."""
    def SparseLengthsSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, lengths -> dX. For each index of a segment, the segment's row of dY."""
    def SparseLengthsSumSparseLookup(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING, WEIGHTS? -> output_indices, output_lengths, output_weights?. Replace each index by ``COMPRESSED_INDICES_MAPPING[index]``, and drop those where it is -1."""
    def SparseLengthsWeightedMean8BitsRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS, scale_bias -> output. output[s] = the sum of the weighted rows at the indices of segment s, divided by their number."""
    def SparseLengthsWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, indices, lengths -> Y. Y[s] = the sum of the rows X[i] over the indices i of segment s, each times its weight."""
    def SparseLengthsWeightedSum2BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsWeightedSumFused2BitRowwise over a table from which rows were pruned."""
    def SparseLengthsWeightedSum4BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsWeightedSumFused4BitRowwise over a table from which rows were pruned."""
    def SparseLengthsWeightedSum8BitRowwiseSparse(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS, COMPRESSED_INDICES_MAPPING -> output. SparseLengthsWeightedSumFused8BitRowwise over a table from which rows were pruned."""
    def SparseLengthsWeightedSum8BitsRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS, scale_bias -> output. output[s] = the weighted sum of the rows at the indices of segment s, of codes with scale and bias."""
    def SparseLengthsWeightedSumFused2BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 2-bit table."""
    def SparseLengthsWeightedSumFused4BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 4-bit table."""
    def SparseLengthsWeightedSumFused8BitRowwise(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """DATA, WEIGHTS, INDICES, LENGTHS -> output. output[s] = the sum of the rows at the indices of segment s, each times its weight, of a fused 8-bit table."""
    def SparseLengthsWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, lengths -> dX. For each index of a segment, the segment's row of dY times the weight of the index."""
    def SparseLengthsWeightedSumWithMainInputGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """weights, dY, lengths, X, indices -> values, dweights. The same as SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient."""
    def SparseLpRegularizer(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, p: float | None = ..., reg_lambda: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """param, indices, grad? -> output_param. The rows ``indices`` after a step of Lp regularization."""
    def SparseMomentumSGDUpdate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., nesterov: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """grad, moment, lr, param, indices -> output_grad, output_moment, output_param. MomentumSGDUpdate on the rows ``indices``; a row that occurs several times is updated each time, in order."""
    def SparseNormalize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, use_max_norm: bool | int | None = ..., norm: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """param, indices, grad? -> output_param. The rows ``indices``, scaled to the L2 norm ``norm``; with ``use_max_norm``, only those with a greater norm."""
    def SparseSortedSegmentMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, segments -> Y. Y[s] = the mean of the rows X[indices[i]] whose segment is s; the ids are sorted, without gaps."""
    def SparseSortedSegmentMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. The same as SortedSegmentMeanGradient: one row per index."""
    def SparseSortedSegmentSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, segments -> Y. Y[s] = the sum of the rows X[indices[i]] whose segment is s; the ids are sorted, without gaps."""
    def SparseSortedSegmentSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. The same as SortedSegmentSumGradient: one row per index."""
    def SparseSortedSegmentWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, indices, segments -> Y. Y[s] = the sum of the rows X[indices[i]] whose segment is s, each times ``weights[i]``, without a gradient."""
    def SparseSortedSegmentWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, segments -> dX. The same as SortedSegmentWeightedSumGradient: one row per index."""
    def SparseStorm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., beta: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, grad_sq_sum, grad, indices, lr, grad_squares? -> output_param, output_moment, output_grad_sq_sum. Storm on the rows ``indices`` of a table; S and r are computed from all rows of the gradient together."""
    def SparseToDense(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, output_first_dim: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, values, like? -> Y. Y[indices[i]] += values[i], 0 elsewhere."""
    def SparseToDenseMask(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mask: Sequence[int] | None = ..., return_presence_mask: bool | int | None = ..., max_skipped_indices: int | None = ..., **common: Unpack[_Common]) -> Any:
        """indices, values, default_value, lengths? -> Y, presence_mask?. Y[s, k] = the value of id ``mask[k]`` in sample s, or ``default_value``."""
    def SparseToDenseMaskGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, mask: Sequence[int] | None = ..., return_presence_mask: bool | int | None = ..., max_skipped_indices: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """indices, dY, lengths? -> dvalues. dvalues = for each value the gradient at its position in Y, or 0 if it is not in Y."""
    def SparseUnsortedSegmentMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, segments -> Y. Y[s] = the mean of the rows X[indices[i]] whose segment is s, in any order; 0 if there are none."""
    def SparseUnsortedSegmentMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. The same as UnsortedSegmentMeanGradient: one row per index."""
    def SparseUnsortedSegmentSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, indices, segments -> Y. Y[s] = the sum of the rows X[indices[i]] whose segment is s, in any order; 0 if there are none."""
    def SparseUnsortedSegmentSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. The same as UnsortedSegmentSumGradient: one row per index."""
    def SparseUnsortedSegmentWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, indices, segments -> Y. Y[s] = the sum of the rows X[indices[i]] whose segment is s, in any order, each times ``weights[i]``."""
    def SparseUnsortedSegmentWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, segments -> dX. The same as UnsortedSegmentWeightedSumGradient: one row per index."""
    def SparseWngrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, seq_b, indices, grad, lr, grad_squares? -> output_param, output_seq_b. Wngrad on the rows ``indices`` of a table; a row that occurs several times is updated each time."""
    def SpatialBN(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., epsilon: float | None = ..., momentum: float | None = ..., order: str | None = ..., num_batches: int | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """X, scale, bias, mean, var, sums?, sumsq?, count? -> Y, running_mean?, running_var?, saved_mean?, saved_inv_std?. Y = scale * (X - mean) / sqrt(var + epsilon) + bias, per channel."""
    def SpatialBNGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, is_test: bool | int | None = ..., epsilon: float | None = ..., momentum: float | None = ..., order: str | None = ..., num_batches: int | None = ..., **common: Unpack[_CommonWithoutOrderWithoutIsTest]) -> Any:
        """X, scale, dY, mean, inv_std, dscale_sum?, dbias_sum?, count?, weight? -> dX, dscale, dbias. Gradients of SpatialBN: of X, of the scale and of the bias."""
    def SpatialNarrowAs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """A, B -> C. C = the upper left corner of each image plane of A, of the size of the planes of B."""
    def SpatialNarrowAsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """A, B, dC -> dA. dA = dC in the upper left corner, 0 elsewhere."""
    def SpatialSoftmaxWithLoss(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, label, weight? -> P, loss. P = softmax of X over its channels; loss = scale * the weighted mean over all positions of -log P[label]."""
    def SpatialSoftmaxWithLossGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, label, weight_or_P, P_or_dloss, dloss? -> dX. dX = (P - label) * weight * dloss * scale / the sum of weights; 0 where the label is -1."""
    def Split(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., add_axis: bool | int | None = ..., order: str | None = ..., split: Sequence[int] | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, split? -> Y+. X split along ``axis`` into one part per output, of the extents ``split``, or of equal extents without it."""
    def SplitByLengths(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axis: int | None = ..., order: str | None = ..., use_scaling_lengths: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """X, lengths -> Y+. X split along ``axis`` (by default that of the channels) into as many parts as there are outputs."""
    def Sqr(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X * X."""
    def Sqrt(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the square root of X; NaN where X is negative."""
    def SquareRootDivide(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """data, scale -> output. Y[i] = data[i] / sqrt(scale[i]), for each sample i of the first axis; data[i] where scale[i] is 0."""
    def SquaredL2Distance(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y -> Z. Z[i] = sum((X[i] - Y[i])^2) / 2, for each sample i of the first axis."""
    def SquaredL2DistanceGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X, Y, dZ -> dX, dY. dX[i] = (X[i] - Y[i]) * dZ[i], and dY = -dX."""
    def Squeeze(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, dims: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X without its axes ``dims``, which must have extent 1."""
    def StatRegistryCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> handle. Create a registry of statistics."""
    def StatRegistryExport(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, reset: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """handle? -> keys, values, timestamps. The names and numbers of a registry, and the time in nanoseconds; with ``reset``, the numbers are set to 0."""
    def StatRegistryUpdate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """keys, values, handle? -> (). Add numbers to a registry, by name; without a third input, to that of the process."""
    def StdDevPut(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, stat_name: str | None = ..., magnitude_expand: int | None = ..., bound: bool | int | None = ..., default_value: float | None = ..., **common: Unpack[_Common]) -> Any:
        """value -> (). As AveragePut, and add the difference from the first value, and its square, to sumoffset and sumsqoffset."""
    def StopGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X; the gradient stops here."""
    def StoreAdd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, blob_name: str | None = ..., add_value: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """handler -> value. Add ``add_value`` to the number under the key ``blob_name``, initially 0; value = the sum."""
    def StoreGet(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, blob_name: str | None = ..., timeout_secs: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """handler -> data. Return what StoreSet stored under the key ``blob_name``, by default the output's name; wait for it."""
    def StoreSet(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, blob_name: str | None = ..., **common: Unpack[_Common]) -> Any:
        """handler, data -> (). Store a blob under the key ``blob_name``, by default its own name."""
    def StoreWait(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, blob_name: Sequence[str] | None = ..., timeout_secs: float | None = ..., **common: Unpack[_Common]) -> Any:
        """handler, names? -> (). Wait until all keys are there, at most ``timeout_secs``; they are ``blob_name``, or the strings in ``names``."""
    def Storm(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, momentum: float | None = ..., beta: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, grad_sq_sum, grad, lr -> output_param, output_moment, output_grad_sq_sum. S' = S + |G|^2, r = lr / cbrt(beta + S'), M' = G + (1 - momentum * r^2) * (M - G), P' = P + r * M'."""
    def StringEndsWith(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, suffix: bytes | str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """strings -> bools. bools = whether each string ends with ``suffix``."""
    def StringEquals(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, text: bytes | str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """strings -> bools. bools = whether each string is ``text``."""
    def StringIndexCreate(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, max_elements: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> index. Create an index of string keys, with capacity for ``max_elements`` numbers, 0 included."""
    def StringJoin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, delimiter: bytes | str | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> strings. strings = the elements of each row (``axis`` 0) or column (1) of X in one string, each followed by ``delimiter``."""
    def StringPrefix(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, length: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """strings -> prefixes. prefixes = the first ``length`` bytes of each string; shorter strings do not change."""
    def StringStartsWith(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, prefix: bytes | str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """strings -> bools. bools = whether each string begins with ``prefix``."""
    def StringSuffix(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, length: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """strings -> suffixes. suffixes = the last ``length`` bytes of each string; shorter strings do not change."""
    def StumpFunc(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, threshold: float | None = ..., low_value: float | None = ..., high_value: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = ``low_value`` where X is at most ``threshold``, else (also for NaN) ``high_value``. No gradient."""
    def StumpFuncIndex(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, threshold: float | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> Index_Low, Index_High. Index_Low = the positions in the flattened X of elements of at most ``threshold``; Index_High = the others."""
    def Sub(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A - B."""
    def SubGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> Any:
        """dY, A, B -> dA, dB. dA = dY and dB = -dY, each summed over the axes along which its operand was broadcast."""
    def Sum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = X0 + X1 + ...; the gradient of each input is the output's gradient itself."""
    def SumElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, average: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of all elements of X, a scalar; with ``average`` their mean."""
    def SumElementsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, average: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY in every element; with ``average`` divided by the number of elements."""
    def SumElementsInt(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of all elements of X, a scalar. No gradient."""
    def SumInt(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = the sum of tensors of the same shape and numeric type. No gradient."""
    def SumReduceLike(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A summed to the shape of B, which is a part of A's shape as in Add with ``broadcast``. No gradient."""
    def SumRelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X+ -> Y. Y = max(X0 + X1 + ..., 0)."""
    def SumRepeatedRows(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_rows: int | None = ..., **common: Unpack[_Common]) -> Any:
        """indices, values -> rows, sums. The distinct ``indices``, ascending, and for each the sum of its ``values``, added in order. No gradient."""
    def SumSqrElements(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, average: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the sum of the squares of all elements of X, a scalar; with ``average`` their mean. No gradient."""
    def Summarize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, to_file: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> summary?. summary = (minimum, maximum, mean, standard deviation) of the elements; the variance is divided by N - 1."""
    def SwapBestPath(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scores, path -> Y. Y = the scores, with the greatest one of each row and that of the path's class exchanged."""
    def Swish(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X / (1 + exp(-X))."""
    def SwishGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, Y, dY -> dX. dX = dY * (Y + (1 - Y) / (1 + exp(-X)))."""
    def TT(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, inp_sizes: Sequence[int] | None = ..., out_sizes: Sequence[int] | None = ..., tt_ranks: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, b, cores -> Y. Y = X W + b, where W, (K, N), is a tensor train: a product of cores."""
    def TTLinearGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, inp_sizes: Sequence[int] | None = ..., out_sizes: Sequence[int] | None = ..., tt_ranks: Sequence[int] | None = ..., **common: Unpack[_Common]) -> Any:
        """X, cores, dY -> dX, db, dcores. The gradients of TT: of X, of b and of the cores."""
    def TTSparseLengthsSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, factor_i: Sequence[int] | None = ..., factor_j: Sequence[int] | None = ..., ranks: Sequence[int] | None = ..., emb_size: int | None = ..., **common: Unpack[_Common]) -> Any:
        """core0, core1, core2, index, lengths -> OUTPUT, core0_output, core1_output, indices. OUTPUT[s] = the sum of the rows of a table at the indices of segment s; the segments have ``lengths``."""
    def TTSparseLengthsSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, factor_i: Sequence[int] | None = ..., factor_j: Sequence[int] | None = ..., ranks: Sequence[int] | None = ..., emb_size: int | None = ..., **common: Unpack[_Common]) -> Any:
        """core0, core1, core2, lengths, core0_output, core1_output, indices, dOUTPUT -> dcore0, dcore1, dcore2. The gradients of the three cores."""
    def Tan(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the tangent of X, in radians."""
    def TanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = dY / cos(X) ** 2."""
    def Tanh(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = tanh(X)."""
    def TanhGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY * (1 - Y * Y)."""
    def TensorProtosDBInput(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_size: int | None = ..., **common: Unpack[_Common]) -> Any:
        """reader -> data+. Read ``batch_size`` records and stack their tensors along a new first axis; 0: one record, not stacked."""
    def TensorVectorSize(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """vector -> size. size = the number of tensors in a vector."""
    def TextFileReaderRead(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, batch_size: int | None = ..., **common: Unpack[_Common]) -> Any:
        """handler -> field+. Return the next ``batch_size`` rows of a text file, one output per column; fewer at the end, none after it."""
    def ThresholdedRelu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X where X > alpha, else 0."""
    def ThresholdedReluGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, alpha: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """Y, dY -> dX. dX = dY where Y > 0, else 0."""
    def ThrowException(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """() -> (). Fail like an operator that raises an exception, to test how nets fail."""
    def Tile(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, tiles: int | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, tiles?, axis? -> Y. Y = X repeated ``tiles`` times along ``axis``; both may be given as inputs."""
    def TileGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, tiles: int | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, tiles?, axis? -> dX. dX = the sum of the tiles of dY."""
    def TimerBegin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, counter_name: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> timer. Start a timer."""
    def TimerEnd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """timer -> (). Stop a timer."""
    def TimerGet(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """timer -> nanos. nanos = the time since a timer was started, in nanoseconds."""
    def TimerGetAndEnd(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """timer -> nanos. Stop a timer; nanos = the time since it was started, in nanoseconds."""
    def TopK(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, k: int | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> Any:
        """X, k? -> Values, Indices, Flattened_indices?. The ``k`` largest elements along ``axis``, in descending order, and their indices; ties go to the lower index."""
    def TopKGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, k: int | None = ..., axis: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dV, Indices, X -> dX. dX = dV at the indices of the elements, else 0."""
    def Transpose(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, axes: Sequence[int] | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with its axes in the order ``axes``, by default reversed."""
    def Trilu(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, upper: bool | int | None = ..., k: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = the matrices of X in their upper triangle, or with ``upper=0`` in the lower one, and 0 elsewhere."""
    def TrimDataset(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fields: Sequence[str] | None = ..., multiple_of: int | None = ..., **common: Unpack[_Common]) -> Any:
        """field+ -> field+. Drop rows at the end of a record, in place, so that the number of rows is a multiple of ``multiple_of``."""
    def UnPackRecords(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, fields: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """packed, prototype* -> field+. field = the columns of packed records: the inverse of PackRecords. For no rows, prototypes give their types."""
    def UniformFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., min: float | None = ..., max: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape?, min?, max? -> Y. Y is uniform in [min, max); the bounds may be given as the second and third input, of one element each."""
    def UniformIntFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., min: int | None = ..., max: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape?, min?, max? -> Y. Y is uniform over the integers from ``min`` to ``max``, both included, int32; bounds as for UniformFill."""
    def Unique(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """indices -> unique, remapping?. The distinct elements of a vector, ascending, and for each element its position among them. No gradient."""
    def UniqueUniformFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., min: int | None = ..., max: int | None = ..., dtype: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape?, avoid? -> Y. Y = distinct random integers from ``min`` to ``max``, both included, without those in the second input."""
    def UnpackRNNSequence(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y = the elements of all sequences, concatenated without padding: the inverse of PackRNNSequence."""
    def UnpackSegments(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, max_length: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """lengths, X -> Y. Y = the rows of all segments, concatenated without padding: the inverse of PackSegments."""
    def UnsafeCoalesce(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y+. Concatenate tensors into one vector, the last output, and make the other outputs views of its parts."""
    def UnsortedSegmentMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the mean of the rows of X whose segment is s, in any order; 0 if there are none."""
    def UnsortedSegmentMeanGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. dX[i] = dY[segments[i]] / number of rows in that segment."""
    def UnsortedSegmentSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, segments -> Y. Y[s] = the sum of the rows of X whose segment is s, in any order; 0 if there are none."""
    def UnsortedSegmentSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, segments -> dX. dX[i] = dY[segments[i]]."""
    def UnsortedSegmentWeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_segments: int | None = ..., grad_on_weights: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, weights, segments -> Y. Y[s] = the sum of the rows of X whose segment is s, in any order, each times its weight."""
    def UnsortedSegmentWeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_weights: bool | int | None = ..., num_segments: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """weights, dY, segments -> dX. dX[i] = dY[segments[i]] times ``weights[i]``, for segments in any order."""
    def UpdateGradientScale(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, growth: float | None = ..., backoff: float | None = ..., interval: int | None = ..., **common: Unpack[_Common]) -> Any:
        """scale, steps, finite -> scale, steps. Multiply the scale by ``backoff`` if gradients were not finite, by ``growth`` after ``interval`` finite steps."""
    def UpsampleBilinear(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, width_scale: float | None = ..., height_scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """X, scales? -> Y. Y = the images X with height and width scaled, by bilinear interpolation."""
    def UpsampleBilinearGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, width_scale: float | None = ..., height_scale: float | None = ..., order: str | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """dY, X, scales? -> dX. dX = each pixel of dY added to the pixels of X that it was interpolated from, by their weights."""
    def UpsampleNearest(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X -> Y. Y = X with each pixel repeated ``scale`` times vertically and horizontally."""
    def UpsampleNearestGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, scale: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, dY -> dX. dX = the sum of dY over the copies of each pixel."""
    def VariableLengthSequencePadding(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, lengths -> Y. Y[t, n] = X[t, n] for t < lengths[n], else 0. No gradient."""
    def ViterbiPath(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """scores, transitions -> path. path = the classes c that maximize the sum of scores[t, c[t]] and transitions[c[t - 1], c[t]]."""
    def WallClockTime(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """() -> time. time = the time of day, in nanoseconds since the start of 1970 (UTC)."""
    def WeightScale(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, stepsize: int | None = ..., upper_bound_iter: int | None = ..., scale: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """w, iter -> nw. nw = scale * w if iter + 1 is a multiple of ``stepsize`` and less than ``upper_bound_iter``, else nw = w."""
    def WeightedMultiSampling(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, num_samples: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """sampling_cdf, shape_tensor? -> sampled_indexes. Draw indices from one distribution, given by its cumulative sums: index i if a random number is below sum i."""
    def WeightedSample(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """sampling_weights, sampling_values? -> sampled_indexes, sampled_values?. Draw an index for each row, with probabilities proportional to the row's weights."""
    def WeightedSampleDequeueBlobs(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, weights: Sequence[float] | None = ..., table_idx_blob: int | None = ..., **common: Unpack[_Common]) -> Any:
        """queue+ -> blob, status+. Remove the first record of one of several queues, drawn with ``weights`` (by default with equal probability)."""
    def WeightedSigmoidCrossEntropyWithLogits(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """logits, targets, weights -> Y. Y = the mean over the last axis of -w * (t * log s + (1 - t) * log(1 - s)); s = sigmoid(logits), t = targets."""
    def WeightedSigmoidCrossEntropyWithLogitsGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """dY, logits, targets, weights -> dlogits. dlogits of WeightedSigmoidCrossEntropyWithLogits; targets and weights have no gradient."""
    def WeightedSum(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_w: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X0, w0, more* -> Y. Y = w0 * X0 + w1 * X1 + ...; the inputs are X0, w0, X1, w1, ..., each weight of one element."""
    def WeightedSumGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, grad_on_w: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """dY, X0, w0, more* -> dX+. dXi = wi * dY for each i and, with ``grad_on_w``, dwi = sum(Xi * dY); inputs are dY, X0, w0, X1, w1, ..."""
    def Where(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast_on_rows: bool | int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """C, X, Z -> Y. Y = X where C is true, else Z, broadcast as by NumPy; with ``broadcast_on_rows`` C has one element per row."""
    def WhereGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast_on_rows: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """C, X, Z, dY -> dX, dZ. dX = dY where C is true, else 0, and dZ the reverse, each summed over axes along which it was broadcast."""
    def While(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, loop_net: NetDef | bytes | None = ..., cond_net: NetDef | bytes | None = ..., keep_iterations: str | None = ..., kept_blobs: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """condition, X* -> Y*. Run ``loop_net`` while the condition is true; ``cond_net``, if given, runs before each test of it."""
    def WhileGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, net: NetDef | bytes | None = ..., record: str | None = ..., changed: Sequence[str] | None = ..., kept: Sequence[str] | None = ..., starts: Sequence[str] | None = ..., seeds: Sequence[str] | None = ..., found: Sequence[str] | None = ..., depends: Sequence[int] | None = ..., given: Sequence[int] | None = ..., results: Sequence[int] | None = ..., constants: Sequence[str] | None = ..., **common: Unpack[_Common]) -> Any:
        """X+ -> Y*. The gradients of a loop, computed from those of its outputs."""
    def WholeBatchMean(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, parts: float | None = ..., part: float | None = ..., least: float | None = ..., offset: float | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """X, divisor, total, weight? -> Y. Y = X * parts * d(divisor) / (part * weight * d(total)), d(v) = max(v, least) + offset; 0 if d(v) or weight is 0."""
    def Wngrad(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, epsilon: float | None = ..., **common: Unpack[_Common]) -> Any:
        """param, seq_b, grad, lr -> output_param, output_seq_b, output_effective_lr?, output_update?. P' = P + r * G with the effective rate r = lr / (b + epsilon), then b' = b + |G|^2 / (b + epsilon)."""
    def XavierFill(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, shape: Sequence[int] | None = ..., extra_shape: Sequence[int] | None = ..., input_as_shape: bool | int | None = ..., run_once: bool | int | None = ..., shards: int | None = ..., rank: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """shape? -> Y. Y is uniform in [-b, b) with b = sqrt(3 / fan_in), fan_in the number of elements per index of the first axis."""
    def Xor(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, broadcast: bool | int | None = ..., axis: int | None = ..., axis_str: str | None = ..., order: str | None = ..., allow_broadcast_fastpath: bool | int | None = ..., **common: Unpack[_CommonWithoutOrder]) -> BlobReference:
        """A, B -> Y. Y = A or B but not both, element by element. No gradient."""
    def YellowFin(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, beta: float | None = ..., curv_win_width: int | None = ..., epsilon: float | None = ..., nesterov: bool | int | None = ..., zero_debias: bool | int | None = ..., **common: Unpack[_Common]) -> Any:
        """param, moment, lr, mu, curv_win, g_avg, g2_avg, scalars_memory, grad, iter -> output_param, output_moment, output_lr, output_mu, output_curv_win, output_g_avg, output_g2_avg, output_scalars_memory. M' = mu * M + lr * G, P' = P - M' (Nesterov's form as in MomentumSGD); then lr and mu are tuned."""
    def ZeroGradient(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., **common: Unpack[_Common]) -> Any:
        """X -> (). Do nothing; in the backward pass, give X a gradient of zeros, as it may have no other."""
    def rnn_internal_accumulate_gradient_input(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, offset: int | None = ..., **common: Unpack[_Common]) -> BlobReference:
        """timestep, dY, G -> Y. Y = G, with row timestep of dY added to its row timestep + offset."""
    def rnn_internal_apply_link(self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..., *, offset: int | None = ..., window: int | None = ..., **common: Unpack[_Common]) -> Any:
        """timestep, X -> Y, X_out. Y = ``window`` rows of X, from row timestep + offset on. X, unchanged, is an output to order the operators."""
