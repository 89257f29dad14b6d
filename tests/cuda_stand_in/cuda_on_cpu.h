// What CubeCL's generated CUDA C++ needs to be C++ for g++: CUDA's built-in names, and a launcher.
// No system header is included, because the sources define uint64_t and others themselves.
typedef unsigned long size_t;
#define __device__
#define __host__
#define __global__ __attribute__((visibility("default"),used))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
struct dim3_ { unsigned x, y, z; };
struct emulation_api { void (*barrier)(); unsigned long (*warp)(int op, unsigned long value, unsigned arg, void *site); };
extern "C" { __attribute__((visibility("default"))) dim3_ threadIdx, blockIdx, blockDim, gridDim; __attribute__((visibility("default"))) emulation_api *emulation; }
static const int warpSize = 32;
// --- barriers, shuffles, votes
static inline __attribute__((always_inline)) void __syncthreads() { emulation->barrier(); }
enum { CPU_SYNC, CPU_IDX, CPU_XOR, CPU_UP, CPU_DOWN, CPU_BALLOT, CPU_GATHER };
static __attribute__((noinline)) unsigned long cpu_warp(int op, unsigned long v, unsigned a) { return emulation->warp(op, v, a, __builtin_return_address(0)); }
static inline __attribute__((always_inline)) void __syncwarp(unsigned = ~0u) { cpu_warp(CPU_SYNC, 0, 0); }
static inline unsigned __activemask() { return ~0u; }
template <class T> static inline __attribute__((always_inline)) T cpu_shfl(int op, T v, unsigned a) { static_assert(sizeof(T) <= 8, ""); unsigned long b = 0; __builtin_memcpy(&b, &v, sizeof(T)); b = cpu_warp(op, b, a); __builtin_memcpy(&v, &b, sizeof(T)); return v; }
#define __shfl_sync(m, v, l) cpu_shfl(CPU_IDX, v, l)
#define __shfl_xor_sync(m, v, l) cpu_shfl(CPU_XOR, v, l)
#define __shfl_up_sync(m, v, l) cpu_shfl(CPU_UP, v, l)
#define __shfl_down_sync(m, v, l) cpu_shfl(CPU_DOWN, v, l)
#define __ballot_sync(m, p) ((unsigned)cpu_warp(CPU_BALLOT, (p) ? 1 : 0, 0))
#define __any_sync(m, p) (__ballot_sync(m, p) != 0)
#define __all_sync(m, p) (__ballot_sync(m, !(p)) == 0)
static inline void __threadfence() {} static inline void __threadfence_block() {} static inline void __nanosleep(unsigned) {}
// --- integers
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long)a * b) >> 32); }
static inline int __mulhi(int a, int b) { return (int)(((long)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
static inline int __popc(unsigned a) { return __builtin_popcount(a); } static inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
static inline int __clz(unsigned a) { return a ? __builtin_clz(a) : 32; } static inline int __clzll(unsigned long long a) { return a ? __builtin_clzll(a) : 64; }
static inline int __ffs(unsigned a) { return __builtin_ffs(a); } static inline int __ffsll(unsigned long long a) { return __builtin_ffsll(a); }
static inline unsigned __brev(unsigned a) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= ((a >> i) & 1) << (31 - i); return r; }
#define CPU_MM(T) static inline T min(T a, T b) { return b < a ? b : a; } static inline T max(T a, T b) { return a < b ? b : a; }
CPU_MM(int) CPU_MM(unsigned) CPU_MM(long long) CPU_MM(unsigned long long) CPU_MM(short) CPU_MM(unsigned short) CPU_MM(signed char) CPU_MM(unsigned char)
// NaN loses, as with fminf.
static inline float min(float a, float b) { return __builtin_fminf(a, b); } static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); } static inline double max(double a, double b) { return __builtin_fmax(a, b); }
// --- floats
#define CPU_F1(n) extern "C" double n(double); extern "C" float n##f(float); static inline float n(float a) { return n##f(a); }
CPU_F1(exp) CPU_F1(exp2) CPU_F1(expm1) CPU_F1(log) CPU_F1(log2) CPU_F1(log10) CPU_F1(log1p) CPU_F1(sqrt) CPU_F1(cbrt) CPU_F1(sin) CPU_F1(cos) CPU_F1(tan) CPU_F1(asin) CPU_F1(acos) CPU_F1(atan) CPU_F1(sinh) CPU_F1(cosh) CPU_F1(tanh) CPU_F1(asinh) CPU_F1(acosh) CPU_F1(atanh) CPU_F1(erf) CPU_F1(erfc) CPU_F1(floor) CPU_F1(ceil) CPU_F1(round) CPU_F1(rint) CPU_F1(trunc) CPU_F1(fabs) CPU_F1(lgamma) CPU_F1(tgamma)
#define CPU_F2(n) extern "C" double n(double, double); extern "C" float n##f(float, float); static inline float n(float a, float b) { return n##f(a, b); }
CPU_F2(pow) CPU_F2(fmod) CPU_F2(atan2) CPU_F2(hypot) CPU_F2(fmin) CPU_F2(fmax) CPU_F2(copysign)
extern "C" float fmaf(float, float, float); extern "C" double fma(double, double, double); static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
static inline float abs(float a) { return __builtin_fabsf(a); } static inline double abs(double a) { return __builtin_fabs(a); } static inline int abs(int a) { return a < 0 ? -a : a; } static inline long long abs(long long a) { return a < 0 ? -a : a; }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); } static inline double rsqrt(double a) { return 1.0 / sqrt(a); } static inline float rsqrt(float a) { return rsqrtf(a); }
static inline float __expf(float a) { return expf(a); } static inline float __logf(float a) { return logf(a); } static inline float __log2f(float a) { return log2f(a); } static inline float __sinf(float a) { return sinf(a); } static inline float __cosf(float a) { return cosf(a); } static inline float __tanf(float a) { return tanf(a); } static inline float __powf(float a, float b) { return powf(a, b); } static inline float __tanhf(float a) { return tanhf(a); }
static inline float __fdividef(float a, float b) { return a / b; } static inline float __frcp_rn(float a) { return 1.0f / a; } static inline float __fsqrt_rn(float a) { return sqrtf(a); } static inline float __frsqrt_rn(float a) { return rsqrtf(a); } static inline float __saturatef(float a) { return min(max(a, 0.0f), 1.0f); }
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
static inline unsigned __float_as_uint(float a) { unsigned r; __builtin_memcpy(&r, &a, 4); return r; } static inline float __uint_as_float(unsigned a) { float r; __builtin_memcpy(&r, &a, 4); return r; }
static inline int __float_as_int(float a) { return (int)__float_as_uint(a); } static inline float __int_as_float(int a) { return __uint_as_float((unsigned)a); }
// 10 bits of mantissa, to nearest even
static inline float cpu_tf32(float a) { unsigned b = __float_as_uint(a); return __uint_as_float((b + 0xFFF + (b >> 13 & 1)) & ~0x1FFFu); }
// --- atomics: one launch at a time and one thread of it at a time
template <class T, class U> static inline T atomicAdd(T *p, U v) { T o = *p; *p = o + (T)v; return o; }
template <class T, class U> static inline T atomicSub(T *p, U v) { T o = *p; *p = o - (T)v; return o; }
template <class T, class U> static inline T atomicMax(T *p, U v) { T o = *p; *p = max(o, (T)v); return o; }
template <class T, class U> static inline T atomicMin(T *p, U v) { T o = *p; *p = min(o, (T)v); return o; }
template <class T, class U> static inline T atomicExch(T *p, U v) { T o = *p; *p = (T)v; return o; }
template <class T, class U, class V> static inline T atomicCAS(T *p, U c, V v) { T o = *p; if (o == (T)c) *p = (T)v; return o; }
template <class T, class U> static inline T atomicAnd(T *p, U v) { T o = *p; *p = o & (T)v; return o; }
template <class T, class U> static inline T atomicOr(T *p, U v) { T o = *p; *p = o | (T)v; return o; }
template <class T, class U> static inline T atomicXor(T *p, U v) { T o = *p; *p = o ^ (T)v; return o; }
template <class T> static inline T atom_add(const T *p, T v) { return atomicAdd((T *)p, v); }
template <class T> static inline T atom_min(const T *p, T v) { return atomicMin((T *)p, v); }
template <class T> static inline T atom_max(const T *p, T v) { return atomicMax((T *)p, v); }
template <class T> static inline T atom_and(const T *p, T v) { return atomicAnd((T *)p, v); }
template <class T> static inline T atom_or(const T *p, T v) { return atomicOr((T *)p, v); }
template <class T> static inline T atom_xor(const T *p, T v) { return atomicXor((T *)p, v); }
template <class T> static inline T atom_exch(const T *p, T v) { return atomicExch((T *)p, v); }
// --- the launcher: parameters by the kernel's own type
template <class T> struct cpu_bare { typedef T type; };
template <class T> struct cpu_bare<const T> { typedef T type; };
template <unsigned... I> struct cpu_seq {};
template <class... A, unsigned... I> static inline void cpu_call(void (*f)(A...), void **p, cpu_seq<I...>) { f(*(typename cpu_bare<A>::type *)p[I]...); }
template <class F> struct cpu_parameters;
template <class... A> struct cpu_parameters<void(A...)> { static constexpr unsigned count = sizeof...(A); static constexpr unsigned sizes[sizeof...(A) + 1] = {(unsigned)sizeof(A)..., 0}; };
template <class... A> static inline void cpu_one(void (*f)(A...), void **p) { cpu_call(f, p, cpu_seq<__integer_pack((unsigned)sizeof...(A))...>()); }
#define SHARED_MEMORY 232448
#define ENTRY(kernel, sync, shared, threads) extern "C" { __attribute__((visibility("default"))) void *shared_memory = shared; \
  __attribute__((visibility("default"))) unsigned most_threads = threads; \
  __attribute__((visibility("default"))) int threads_meet = sync; \
  __attribute__((visibility("default"))) unsigned parameter_count = cpu_parameters<decltype(kernel)>::count; \
  __attribute__((visibility("default"))) const unsigned *parameter_sizes = cpu_parameters<decltype(kernel)>::sizes; \
  __attribute__((visibility("default"))) void run_thread(void **p) { cpu_one(kernel, p); } \
  __attribute__((visibility("default"))) void run_block(void **p) { for (unsigned z = 0; z < blockDim.z; z++) for (unsigned y = 0; y < blockDim.y; y++) for (unsigned x = 0; x < blockDim.x; x++) { threadIdx = {x, y, z}; cpu_one(kernel, p); } } }
