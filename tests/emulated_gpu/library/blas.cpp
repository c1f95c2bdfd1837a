// libcublas.so.12 of the emulated GPU: the products that CuPy's matmul, dot, tensordot and cupy.cublas ask for.
//
// Plain loops over column-major matrices. Products of floats and halves are summed in double, so the result is the
// exact sum, rounded once; a GPU's lies within its usual error of that.
#include "machine.h"

#include <complex>
#include <type_traits>

#include "../include/cuda_bf16.h"  // last: its names for qualifiers are words of the standard library's headers
#include "../include/cuda_fp16.h"

namespace {

enum { SUCCESS = 0, ALLOCATION_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { NONE = 0, TRANSPOSED = 1, CONJUGATED = 2 };

struct Handle {
    void* stream = nullptr;
    int scalars_on_device = 0, math_mode = 0;
    bool has_workspace = false;  // memory of the program's; without it cuBLAS may allocate, which a capture refuses
};
Handle& of(void* handle) { return *static_cast<Handle*>(handle); }

// Compiled as kernels are, so that accesses are checked.
int later(void* handle, emulated::Task task) {
    if (!of(handle).has_workspace && emulated::capture_status(of(handle).stream)) return ALLOCATION_FAILED;
    emulated::count(emulated::LAUNCHES, "launch " + std::to_string(emulated::stream_device(of(handle).stream)) + " cublas");
    return emulated::enqueue(of(handle).stream, "cublas", std::move(task)) ? EXECUTION_FAILED : SUCCESS;
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

// C = alpha op(A) op(B) + beta C; where beta is 0, C is not read.
template <class AB, class C, class Scale>
void multiply(int m, int n, int k, Scale alpha, Matrix<const AB> a, Matrix<const AB> b, Scale beta, Matrix<C> c) {
    using S = sum_of<AB>;
    std::vector<S> left(size_t(m) * k), column(m);
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < m; ++i) left[i + size_t(p) * m] = a.template value<S>(i, p);
    for (int j = 0; j < n; ++j) {
        std::fill(column.begin(), column.end(), S(0));
        for (int p = 0; p < k; ++p) {
            const S y = b.template value<S>(p, j);
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
enum Compute { C_16F = 64, C_16F_PEDANTIC = 65 };

struct Typed {
    const void* address;
    int type, leading;
    long long step;  // elements from one matrix of a batch to the next
};

template <class AB, class C, class Scale>
int multiply_batch(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, Typed a, Typed b, const void* beta, Typed c, int count) {
    const Scalar<Scale> by(handle, static_cast<const Scale*>(alpha)), keep(handle, static_cast<const Scale*>(beta));
    const Matrix<const AB> left{static_cast<const AB*>(a.address), ta, a.leading}, right{static_cast<const AB*>(b.address), tb, b.leading};
    const Matrix<C> result{static_cast<C*>(const_cast<void*>(c.address)), NONE, c.leading};
    return later(handle, [=] {
        for (int i = 0; i < count; ++i)
            multiply<AB, C, Scale>(m, n, k, by.get(), left.moved(i * a.step), right.moved(i * b.step), keep.get(), result.moved(i * c.step));
    });
}

// The type of alpha and beta follows from what is computed in and what is multiplied.
int multiply_typed(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, Typed a, Typed b, const void* beta, Typed c,
                   int compute, int count = 1) {
    using c64 = std::complex<float>;
    using c128 = std::complex<double>;
    if (a.type != b.type || compute == C_16F || compute == C_16F_PEDANTIC) return NOT_SUPPORTED;
    auto is = [&](int ab, int cc) { return a.type == ab && c.type == cc; };
    auto run = [&](auto* function) { return function(handle, ta, tb, m, n, k, alpha, a, b, beta, c, count); };
    if (is(F32, F32)) return run(multiply_batch<float, float, float>);
    if (is(F64, F64)) return run(multiply_batch<double, double, double>);
    if (is(C64, C64)) return run(multiply_batch<c64, c64, c64>);
    if (is(C128, C128)) return run(multiply_batch<c128, c128, c128>);
    if (is(F16, F16)) return run(multiply_batch<__half, __half, float>);
    if (is(F16, F32)) return run(multiply_batch<__half, float, float>);
    if (is(BF16, BF16)) return run(multiply_batch<__nv_bfloat16, __nv_bfloat16, float>);
    if (is(BF16, F32)) return run(multiply_batch<__nv_bfloat16, float, float>);
    if (is(I8, I32)) return run(multiply_batch<signed char, int, int>);
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
    return later(handle, [=] {
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
    return later(handle, [=] {
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
    return later(handle, [=] {
        for (int i = 0; i < n; ++i) y[ptrdiff_t(i) * step_y] += by.get() * x[ptrdiff_t(i) * step_x];
    });
}

template <class T> int scale(void* handle, int n, const T* alpha, T* x, int step) {
    const Scalar<T> by(handle, alpha);
    return later(handle, [=] {
        for (int i = 0; i < n; ++i) x[ptrdiff_t(i) * step] *= by.get();
    });
}

template <class T, bool conjugated> int dot(void* handle, int n, const T* x, int step_x, const T* y, int step_y, T* result) {
    x = first(x, n, step_x);
    y = first(y, n, step_y);
    const int status = later(handle, [=] {
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
    return later(handle, [=] {
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
    *handle = new Handle;
    return SUCCESS;
}
int cublasDestroy_v2(void* handle) { delete &of(handle); return SUCCESS; }
int cublasGetVersion_v2(void*, int* version) { *version = 120900; return SUCCESS; }
int cublasGetPointerMode_v2(void* handle, int* mode) { *mode = of(handle).scalars_on_device; return SUCCESS; }
int cublasSetPointerMode_v2(void* handle, int mode) { of(handle).scalars_on_device = mode; return SUCCESS; }
int cublasGetMathMode(void* handle, int* mode) { *mode = of(handle).math_mode; return SUCCESS; }
int cublasSetMathMode(void* handle, int mode) { of(handle).math_mode = mode; return SUCCESS; }
// Sets aside the memory that the program has given, too, as cuBLAS does.
int cublasSetStream_v2(void* handle, void* stream) {
    of(handle).stream = stream;
    of(handle).has_workspace = false;
    return SUCCESS;
}
int cublasSetWorkspace_v2(void* handle, void* memory, size_t size) {
    const emulated::Piece piece = emulated::piece_at(memory);
    if (piece.kind != emulated::Kind::device || piece.device != emulated::stream_device(of(handle).stream) || size % 256) return INVALID_VALUE;
    of(handle).has_workspace = true;
    return SUCCESS;
}
int cublasGetStream_v2(void* handle, void** stream) { *stream = of(handle).stream; return SUCCESS; }

#define FUNCTIONS(P, T, TYPE)                                                                                             \
    int cublas##P##gemm_v2(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, \
                           int ldb, const T* beta, T* c, int ldc) {                                                       \
        return multiply_typed(h, ta, tb, m, n, k, alpha, {a, TYPE, lda, 0}, {b, TYPE, ldb, 0}, beta, {c, TYPE, ldc, 0}, 0); \
    }                                                                                                                     \
    int cublas##P##gemmStridedBatched(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda,  \
                                      long long next_a, const T* b, int ldb, long long next_b, const T* beta, T* c,       \
                                      int ldc, long long next_c, int count) {                                             \
        return multiply_typed(h, ta, tb, m, n, k, alpha, {a, TYPE, lda, next_a}, {b, TYPE, ldb, next_b}, beta,            \
                              {c, TYPE, ldc, next_c}, 0, count);                                                          \
    }                                                                                                                     \
    int cublas##P##gemmBatched(void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* const* a, int lda,  \
                               const T* const* b, int ldb, const T* beta, T* const* c, int ldc, int count) {              \
        const Scalar<T> by(h, alpha), keep(h, beta);                                                                      \
        return later(h, [=] {                                                                                             \
            for (int i = 0; i < count; ++i)                                                                               \
                multiply<T, T, T>(m, n, k, by.get(), {a[i], ta, lda}, {b[i], tb, ldb}, keep.get(), {c[i], NONE, ldc});    \
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
    return multiply_typed(h, ta, tb, m, n, k, alpha, {a, type_a, lda, 0}, {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}, 0);
}
int cublasGemmEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda, const void* b,
                 int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, int) {
    return multiply_typed(h, ta, tb, m, n, k, alpha, {a, type_a, lda, 0}, {b, type_b, ldb, 0}, beta, {c, type_c, ldc, 0}, compute);
}
int cublasGemmStridedBatchedEx(void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a, int lda,
                               long long next_a, const void* b, int type_b, int ldb, long long next_b, const void* beta, void* c,
                               int type_c, int ldc, long long next_c, int count, int compute, int) {
    return multiply_typed(h, ta, tb, m, n, k, alpha, {a, type_a, lda, next_a}, {b, type_b, ldb, next_b}, beta, {c, type_c, ldc, next_c},
                          compute, count);
}

}  // extern "C"
