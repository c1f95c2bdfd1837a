// libcublas.so.12 of the emulated GPU: the products that CuPy's matmul, dot, tensordot and cupy.cublas ask for.
//
// Plain loops over column-major matrices. Products of floats and halves are summed in double, so the result is the
// exact sum, rounded once; a GPU's lies within its usual error of that. Where TF32 is allowed, factors are rounded to it.
//
// Tests read from the name of a launch what was asked for: "cublas gemm m=2 n=3 k=4 nt f16 f32 compute=68 mode=16
// count=1 beta=0", where "nt" says which factor is transposed, and the types are those of factors and result.
#include "machine.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <string>
#include <type_traits>

#include "../include/cuda_bf16.h"  // last: its names for qualifiers are words of the standard library's headers
#include "../include/cuda_fp16.h"

namespace {

enum { SUCCESS = 0, ALLOCATION_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { NONE = 0, TRANSPOSED = 1, CONJUGATED = 2 };
enum { TF32_MATH = 3 };  // a mode of a handle

struct Handle {
    int device;
    void* stream = nullptr;
    int scalars_on_device = 0, math_mode = 0;
    void* workspace = nullptr;  // memory of the program's; without it cuBLAS may allocate, which a capture refuses
};
Handle& of(void* handle) { return *static_cast<Handle*>(handle); }

// Compiled as kernels are, so that accesses are checked.
int later(void* handle, const std::string& what, emulated::Task task) {
    const int device = of(handle).device;
    void *stream = of(handle).stream, *workspace = of(handle).workspace;
    if (emulated::current_device() != device || (stream && emulated::stream_device(stream) != device)) return EXECUTION_FAILED;
    if (!workspace && emulated::capture_status(stream)) return ALLOCATION_FAILED;
    const char* name = emulated::lasting("cublas " + what);
    emulated::count(emulated::LAUNCHES, "launch " + std::to_string(device) + " " + name);
    const auto run = [=] {
        if (workspace) emulated::touch(workspace, 256, true);  // two streams must not use it at a time
        task();
    };
    return emulated::enqueue(stream, name, run) ? EXECUTION_FAILED : SUCCESS;
}

// A factor: on the host it is read when the function is called, on the device when it is computed with.
template <class T> class Scalar {
public:
    Scalar(void* handle, const T* address) : address(of(handle).scalars_on_device ? address : nullptr) {
        if (!this->address) value = *address;
    }
    T get() const { return address ? *address : value; }

private:
    const T* address;
    T value{};
};

template <class T> struct Sum { using type = double; };
template <class T> struct Sum<std::complex<T>> { using type = std::complex<double>; };
template <> struct Sum<int> { using type = long long; };
template <> struct Sum<signed char> { using type = long long; };
template <class T> using sum_of = typename Sum<T>::type;

template <class T> T conjugate(T x) { return x; }
template <class T> std::complex<T> conjugate(std::complex<T> x) { return std::conj(x); }

template <class T> constexpr bool is_short_float = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;
template <class To, class From> To stored(From x) {
    if constexpr (is_short_float<To>) return To(float(x));
    else return To(x);
}
template <class S, class T> S widened(T x) {
    if constexpr (is_short_float<T>) return S(float(x));
    else return S(x);
}

template <class T> struct Matrix {
    T* first;
    int operation, leading;
    T& at(int i, int j) const { return operation == NONE ? first[i + size_t(j) * leading] : first[j + size_t(i) * leading]; }
    template <class S> S value(int i, int j) const {
        const S x = widened<S>(at(i, j));
        return operation == CONJUGATED ? conjugate(x) : x;
    }
    Matrix moved(long long by) const { return {first + by, operation, leading}; }
};

// To 10 bits after the point; the nearest one, of two equally near ones the larger.
double as_tf32(double x) {
    float narrow = float(x);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    if (std::isfinite(narrow)) bits = (bits + 0x1000) & 0xffffe000;
    std::memcpy(&narrow, &bits, 4);
    return narrow;
}
std::complex<double> as_tf32(std::complex<double> x) { return {as_tf32(x.real()), as_tf32(x.imag())}; }
long long as_tf32(long long x) { return x; }

// C = alpha op(A) op(B) + beta C; where beta is 0, C is not read.
template <class AB, class C, class Scale>
void multiply(int m, int n, int k, Scale alpha, Matrix<const AB> a, Matrix<const AB> b, Scale beta, Matrix<C> c, bool tf32) {
    using S = sum_of<AB>;
    std::vector<S> left(size_t(m) * k), column(m);
    const auto factor = [tf32](S x) { return tf32 ? S(as_tf32(x)) : x; };
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < m; ++i) left[i + size_t(p) * m] = factor(a.template value<S>(i, p));
    for (int j = 0; j < n; ++j) {
        std::fill(column.begin(), column.end(), S(0));
        for (int p = 0; p < k; ++p) {
            const S y = factor(b.template value<S>(p, j));
            const S* x = &left[size_t(p) * m];
            for (int i = 0; i < m; ++i) column[i] += x[i] * y;
        }
        for (int i = 0; i < m; ++i) {
            S value = S(alpha) * column[i];
            if (beta != Scale(0)) value += S(beta) * widened<S>(c.at(i, j));
            c.at(i, j) = stored<C>(value);
        }
    }
}

enum Type { F32 = 0, F64 = 1, F16 = 2, I8 = 3, C64 = 4, C128 = 5, I32 = 10, BF16 = 14 };
const char* type_name(int type) {
    switch (type) {
        case F32: return " f32";
        case F64: return " f64";
        case F16: return " f16";
        case I8: return " i8";
        case C64: return " c64";
        case C128: return " c128";
        case I32: return " i32";
        case BF16: return " bf16";
    }
    return " ?";
}

// What is computed in: the function says it (0), or a cublasComputeType_t does.
enum Compute { OF_FUNCTION = 0, C_32F = 68, C_32F_PEDANTIC, C_64F, C_64F_PEDANTIC, C_32I, C_32I_PEDANTIC, C_FAST_16F, C_FAST_16BF, C_FAST_TF32 = 77 };
bool computes(int compute, int factors) {
    switch (compute) {
        case OF_FUNCTION: return true;
        case C_32F:
        case C_32F_PEDANTIC: return factors == F32 || factors == F16 || factors == BF16 || factors == C64;
        case C_64F:
        case C_64F_PEDANTIC: return factors == F64 || factors == C128;
        case C_32I:
        case C_32I_PEDANTIC: return factors == I8;
        case C_FAST_16F:
        case C_FAST_16BF:
        case C_FAST_TF32: return factors == F32 || factors == C64;
    }
    return false;
}

struct Typed {
    const void* address;
    int type, leading;
    long long step;  // elements from one matrix of a batch to the next
};

struct Product {
    void* handle;
    int ta, tb, m, n, k;
    const void* alpha;
    Typed a, b;
    const void* beta;
    Typed c;
    int compute = OF_FUNCTION, count = 1;

    bool is_valid() const {
        const auto fits = [](const Typed& x, int rows) { return x.leading >= std::max(1, rows); };
        const bool operations = std::min(ta, tb) >= NONE && std::max(ta, tb) <= CONJUGATED;
        return operations && std::min({m, n, k, count}) >= 0 && fits(a, ta ? k : m) && fits(b, tb ? n : k) && fits(c, m);
    }
    bool tf32() const { return a.type != F64 && a.type != C128 && (compute == C_FAST_TF32 || of(handle).math_mode == TF32_MATH); }
    template <class Scale> std::string text() const {
        const auto number = [](const char* name, long value) { return std::string(" ") + name + "=" + std::to_string(value); };
        const std::string extents = "gemm" + number("m", m) + number("n", n) + number("k", k);
        const std::string types = std::string(" ") + "ntc"[ta] + "ntc"[tb] + type_name(a.type) + type_name(c.type);
        const std::string how = number("compute", compute) + number("mode", of(handle).math_mode) + number("count", count);
        if (of(handle).scalars_on_device) return extents + types + how;
        return extents + types + how + (*static_cast<const Scale*>(beta) == Scale(0) ? " beta=0" : " beta");
    }
};

template <class AB, class C, class Scale> int multiply_batch(const Product& p) {
    const Scalar<Scale> by(p.handle, static_cast<const Scale*>(p.alpha)), keep(p.handle, static_cast<const Scale*>(p.beta));
    const Matrix<const AB> left{static_cast<const AB*>(p.a.address), p.ta, p.a.leading}, right{static_cast<const AB*>(p.b.address), p.tb, p.b.leading};
    const Matrix<C> result{static_cast<C*>(const_cast<void*>(p.c.address)), NONE, p.c.leading};
    return later(p.handle, p.text<Scale>(), [=, tf32 = p.tf32()] {
        for (int i = 0; i < p.count; ++i)
            multiply<AB, C, Scale>(p.m, p.n, p.k, by.get(), left.moved(i * p.a.step), right.moved(i * p.b.step), keep.get(),
                                   result.moved(i * p.c.step), tf32);
    });
}

// The type of alpha and beta follows from what is computed in and what is multiplied.
int multiply_typed(const Product& p) {
    using c64 = std::complex<float>;
    using c128 = std::complex<double>;
    if (!p.is_valid()) return INVALID_VALUE;
    if (p.a.type != p.b.type || !computes(p.compute, p.a.type)) return NOT_SUPPORTED;
    auto is = [&](int ab, int cc) { return p.a.type == ab && p.c.type == cc; };
    if (is(F32, F32)) return multiply_batch<float, float, float>(p);
    if (is(F64, F64)) return multiply_batch<double, double, double>(p);
    if (is(C64, C64)) return multiply_batch<c64, c64, c64>(p);
    if (is(C128, C128)) return multiply_batch<c128, c128, c128>(p);
    if (is(F16, F16)) return multiply_batch<__half, __half, float>(p);
    if (is(F16, F32)) return multiply_batch<__half, float, float>(p);
    if (is(BF16, BF16)) return multiply_batch<__nv_bfloat16, __nv_bfloat16, float>(p);
    if (is(BF16, F32)) return multiply_batch<__nv_bfloat16, float, float>(p);
    if (is(I8, I32)) return multiply_batch<signed char, int, int>(p);
    return NOT_SUPPORTED;
}

template <class T> T* first(T* x, int n, int step) { return step < 0 ? x - ptrdiff_t(n - 1) * step : x; }

template <class T>
int multiply_vector(void* handle, int t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int step_x, const T* beta, T* y, int step_y) {
    const int rows = t == NONE ? m : n, inner = t == NONE ? n : m;
    const Scalar<T> by(handle, alpha), keep(handle, beta);
    const Matrix<const T> matrix{a, t, lda};
    x = first(x, inner, step_x);
    y = first(y, rows, step_y);
    return later(handle, "gemv", [=] {
        for (int i = 0; i < rows; ++i) {
            sum_of<T> sum(0);
            for (int p = 0; p < inner; ++p) sum += matrix.template value<sum_of<T>>(i, p) * sum_of<T>(x[ptrdiff_t(p) * step_x]);
            T& place = y[ptrdiff_t(i) * step_y];
            sum *= sum_of<T>(by.get());
            if (keep.get() != T(0)) sum += sum_of<T>(keep.get()) * sum_of<T>(place);
            place = T(sum);
        }
    });
}

template <class T>
int add_matrices(void* handle, int ta, int tb, int m, int n, const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb, T* c, int ldc) {
    const Scalar<T> of_a(handle, alpha), of_b(handle, beta);
    const Matrix<const T> left{a, ta, lda}, right{b, tb, ldb};
    return later(handle, "geam", [=] {
        for (int j = 0; j < n; ++j)
            for (int i = 0; i < m; ++i) {
                T sum(0);
                if (of_a.get() != T(0)) sum += of_a.get() * left.template value<T>(i, j);
                if (of_b.get() != T(0)) sum += of_b.get() * right.template value<T>(i, j);
                c[i + size_t(j) * ldc] = sum;
            }
    });
}

template <class T> int add_vector(void* handle, int n, const T* alpha, const T* x, int step_x, T* y, int step_y) {
    const Scalar<T> by(handle, alpha);
    x = first(x, n, step_x);
    y = first(y, n, step_y);
    return later(handle, "axpy", [=] {
        for (int i = 0; i < n; ++i) y[ptrdiff_t(i) * step_y] += by.get() * x[ptrdiff_t(i) * step_x];
    });
}

template <class T> int scale(void* handle, int n, const T* alpha, T* x, int step) {
    const Scalar<T> by(handle, alpha);
    return later(handle, "scal", [=] {
        for (int i = 0; i < n; ++i) x[ptrdiff_t(i) * step] *= by.get();
    });
}

template <class T, bool conjugated> int dot(void* handle, int n, const T* x, int step_x, const T* y, int step_y, T* result) {
    x = first(x, n, step_x);
    y = first(y, n, step_y);
    const int status = later(handle, "dot", [=] {
        sum_of<T> sum(0);
        for (int i = 0; i < n; ++i) {
            const sum_of<T> of_x(x[ptrdiff_t(i) * step_x]);
            sum += (conjugated ? conjugate(of_x) : of_x) * sum_of<T>(y[ptrdiff_t(i) * step_y]);
        }
        *result = T(sum);
    });
    if (status || of(handle).scalars_on_device) return status;
    return emulated::synchronize_stream(of(handle).stream) ? EXECUTION_FAILED : SUCCESS;
}

template <class T, bool conjugated>
int add_outer(void* handle, int m, int n, const T* alpha, const T* x, int step_x, const T* y, int step_y, T* a, int lda) {
    const Scalar<T> by(handle, alpha);
    x = first(x, m, step_x);
    y = first(y, n, step_y);
    return later(handle, "ger", [=] {
        for (int j = 0; j < n; ++j)
            for (int i = 0; i < m; ++i) {
                const T of_y = y[ptrdiff_t(j) * step_y];
                a[i + size_t(j) * lda] += by.get() * x[ptrdiff_t(i) * step_x] * (conjugated ? conjugate(of_y) : of_y);
            }
    });
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
    if (emulated::refuse_in_capture()) return ALLOCATION_FAILED;
    *handle = new Handle{emulated::current_device()};
    return SUCCESS;
}
// Waits for the device.
int cublasDestroy_v2(void* handle) {
    if (emulated::refuse_in_capture() || emulated::synchronize_device(of(handle).device)) return EXECUTION_FAILED;
    delete &of(handle);
    return SUCCESS;
}
int cublasGetVersion_v2(void*, int* version) { *version = 120900; return SUCCESS; }
int cublasGetPointerMode_v2(void* handle, int* mode) { *mode = of(handle).scalars_on_device; return SUCCESS; }
int cublasSetPointerMode_v2(void* handle, int mode) { of(handle).scalars_on_device = mode; return SUCCESS; }
int cublasGetMathMode(void* handle, int* mode) { *mode = of(handle).math_mode; return SUCCESS; }
int cublasSetMathMode(void* handle, int mode) { of(handle).math_mode = mode; return SUCCESS; }
// Sets aside the memory that the program has given, too, as cuBLAS does.
int cublasSetStream_v2(void* handle, void* stream) {
    of(handle).stream = stream;
    of(handle).workspace = nullptr;
    return SUCCESS;
}
int cublasSetWorkspace_v2(void* handle, void* memory, size_t size) {
    const emulated::Piece piece = emulated::piece_at(memory);
    if (piece.kind != emulated::Kind::device || piece.device != emulated::stream_device(of(handle).stream) || size % 256 || uintptr_t(memory) % 256)
        return INVALID_VALUE;
    of(handle).workspace = memory;
    return SUCCESS;
}
int cublasGetStream_v2(void* handle, void** stream) { *stream = of(handle).stream; return SUCCESS; }

#define FUNCTIONS(P, T, TYPE)                                                                                             \
    int cublas##P##gemm_v2(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, \
                           int ldb, const T* beta, T* c, int ldc) {                                                       \
        return multiply_typed({h, ta, tb, m, n, k, alpha, {a, TYPE, lda, 0}, {b, TYPE, ldb, 0}, beta, {c, TYPE, ldc, 0}}); \
    }                                                                                                                     \
    int cublas##P##gemmStridedBatched(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda,  \
                                      long long next_a, const T* b, int ldb, long long next_b, const T* beta, T* c,       \
                                      int ldc, long long next_c, int count) {                                             \
        return multiply_typed({h, ta, tb, m, n, k, alpha, {a, TYPE, lda, next_a}, {b, TYPE, ldb, next_b}, beta,           \
                               {c, TYPE, ldc, next_c}, OF_FUNCTION, count});                                                          \
    }                                                                                                                     \
    int cublas##P##gemmBatched(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* const* a, int lda,  \
                               const T* const* b, int ldb, const T* beta, T* const* c, int ldc, int count) {              \
        const Scalar<T> by(h, alpha), keep(h, beta);                                                                      \
        const bool tf32 = TYPE != F64 && TYPE != C128 && of(h).math_mode == TF32_MATH;                                    \
        return later(h, "gemm of pointers", [=] {                                                                                             \
            for (int i = 0; i < count; ++i)                                                                               \
                multiply<T, T, T>(m, n, k, by.get(), {a[i], ta, lda}, {b[i], tb, ldb}, keep.get(), {c[i], NONE, ldc}, tf32); \
        });                                                                                                               \
    }                                                                                                                     \
    int cublas##P##gemv_v2(void* h, int t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int step_x,     \
                           const T* beta, T* y, int step_y) {                                                             \
        return multiply_vector(h, t, m, n, alpha, a, lda, x, step_x, beta, y, step_y);                                    \
    }                                                                                                                     \
    int cublas##P##geam(void* h, int ta, int tb, int m, int n, const T* alpha, const T* a, int lda, const T* beta,        \
                        const T* b, int ldb, T* c, int ldc) {                                                             \
        return add_matrices(h, ta, tb, m, n, alpha, a, lda, beta, b, ldb, c, ldc);                                        \
    }                                                                                                                     \
    int cublas##P##axpy_v2(void* h, int n, const T* alpha, const T* x, int step_x, T* y, int step_y) {                    \
        return add_vector(h, n, alpha, x, step_x, y, step_y);                                                             \
    }                                                                                                                     \
    int cublas##P##scal_v2(void* h, int n, const T* alpha, T* x, int step) { return scale(h, n, alpha, x, step); }
FUNCTIONS(S, float, F32)
FUNCTIONS(D, double, F64)
FUNCTIONS(C, std::complex<float>, C64)
FUNCTIONS(Z, std::complex<double>, C128)

#define DOT_AND_OUTER(dot_name, outer_name, T, conjugated)                                                              \
    int cublas##dot_name##_v2(void* h, int n, const T* x, int step_x, const T* y, int step_y, T* result) {              \
        return dot<T, conjugated>(h, n, x, step_x, y, step_y, result);                                                  \
    }                                                                                                                   \
    int cublas##outer_name##_v2(void* h, int m, int n, const T* alpha, const T* x, int step_x, const T* y, int step_y,  \
                                T* a, int lda) {                                                                        \
        return add_outer<T, conjugated>(h, m, n, alpha, x, step_x, y, step_y, a, lda);                                  \
    }
DOT_AND_OUTER(Sdot, Sger, float, false)
DOT_AND_OUTER(Ddot, Dger, double, false)
DOT_AND_OUTER(Cdotu, Cgeru, std::complex<float>, false)
DOT_AND_OUTER(Zdotu, Zgeru, std::complex<double>, false)
DOT_AND_OUTER(Cdotc, Cgerc, std::complex<float>, true)
DOT_AND_OUTER(Zdotc, Zgerc, std::complex<double>, true)

int cublasSgemmEx(void* h, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int type_a, int lda, const void* b,
                  int type_b, int ldb, const float* beta, void* c, int type_c, int ldc) {
    return multiply_typed({h, ta, tb, m, n, k, alpha, {a, type_a, lda, 0}, {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}});
}
int cublasGemmEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda, const void* b,
                 int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, int) {
    return multiply_typed({h, ta, tb, m, n, k, alpha, {a, type_a, lda, 0}, {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}, compute});
}
int cublasGemmStridedBatchedEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                               long long next_a, const void* b, int type_b, int ldb, long long next_b, const void* beta, void* c,
                               int type_c, int ldc, long long next_c, int count, int compute, int) {
    return multiply_typed({h, ta, tb, m, n, k, alpha, {a, type_a, lda, next_a}, {b, type_b, ldb, next_b}, beta, {c, type_c, ldc, next_c},
                           compute, count});
}

}  // extern "C"
