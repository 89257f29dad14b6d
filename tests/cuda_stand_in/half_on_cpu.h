// CUDA's half types for g++, as cuda_fp16.h and cuda_bf16.h declare what CubeCL uses. Arithmetic is in
// f32 and is rounded once, which equals half arithmetic for + - * / and sqrt.
static inline float cpu_f16_widen(unsigned short b) { _Float16 h; __builtin_memcpy(&h, &b, 2); return (float)h; }
static inline unsigned short cpu_f16_round(float f) { _Float16 h = (_Float16)f; unsigned short b; __builtin_memcpy(&b, &h, 2); return b; }
static inline float cpu_bf16_widen(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
static inline unsigned short cpu_bf16_round(float f) { unsigned u = __float_as_uint(f); return isnan(f) ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
#define CPU_HALF_OP(T, T2, o) static inline T operator o(T a, T b) { return T((float)a o (float)b); } static inline T2 operator o(T2 a, T2 b) { return T2(a.x o b.x, a.y o b.y); }
#define CPU_HALF_TEST(T, T2, o) static inline bool operator o(T a, T b) { return (float)a o (float)b; } static inline bool operator o(T2 a, T2 b) { return a.x o b.x && a.y o b.y; }
#define CPU_HALF_F1(T, T2, n, n2, f) static inline T n(T a) { return T(f((float)a)); } static inline T2 n2(T2 a) { return T2(n(a.x), n(a.y)); }
#define CPU_HALF_F2(T, T2, n, n2, f) static inline T n(T a, T b) { return T(f((float)a, (float)b)); } static inline T2 n2(T2 a, T2 b) { return T2(n(a.x, b.x), n(a.y, b.y)); }
static inline float cpu_min_nan(float a, float b) { return isnan(a) ? a : isnan(b) ? b : min(a, b); }
static inline float cpu_max_nan(float a, float b) { return isnan(a) ? a : isnan(b) ? b : max(a, b); }
#define CPU_HALF(T, T2, widen, round) \
  struct T { unsigned short bits; T() = default; template <class V> T(V v) : bits(round((float)v)) {} operator float() const { return widen(bits); } }; \
  struct __attribute__((aligned(4))) T2 { T x, y; T2() = default; T2(T a, T b) : x(a), y(b) {} }; \
  CPU_HALF_OP(T, T2, +) CPU_HALF_OP(T, T2, -) CPU_HALF_OP(T, T2, *) CPU_HALF_OP(T, T2, /) \
  CPU_HALF_TEST(T, T2, ==) CPU_HALF_TEST(T, T2, !=) CPU_HALF_TEST(T, T2, <) CPU_HALF_TEST(T, T2, <=) CPU_HALF_TEST(T, T2, >) CPU_HALF_TEST(T, T2, >=) \
  static inline T operator-(T a) { a.bits ^= 0x8000; return a; } static inline T2 operator-(T2 a) { return T2(-a.x, -a.y); } \
  CPU_HALF_F1(T, T2, hexp, h2exp, expf) CPU_HALF_F1(T, T2, hlog, h2log, logf) CPU_HALF_F1(T, T2, hsin, h2sin, sinf) CPU_HALF_F1(T, T2, hcos, h2cos, cosf) \
  CPU_HALF_F1(T, T2, htanh, h2tanh, tanhf) CPU_HALF_F1(T, T2, hsqrt, h2sqrt, sqrtf) CPU_HALF_F1(T, T2, hrsqrt, h2rsqrt, rsqrtf) \
  CPU_HALF_F1(T, T2, hceil, h2ceil, ceilf) CPU_HALF_F1(T, T2, hfloor, h2floor, floorf) CPU_HALF_F1(T, T2, htrunc, h2trunc, truncf) CPU_HALF_F1(T, T2, hrint, h2rint, rintf) \
  CPU_HALF_F1(T, T2, __habs, __habs2, fabsf) CPU_HALF_F2(T, T2, __hmin, __hmin2, min) CPU_HALF_F2(T, T2, __hmax, __hmax2, max) \
  CPU_HALF_F2(T, T2, __hmin_nan, __hmin2_nan, cpu_min_nan) CPU_HALF_F2(T, T2, __hmax_nan, __hmax2_nan, cpu_max_nan) \
  static inline bool __hisnan(T a) { return isnan((float)a); } static inline bool __hisinf(T a) { return isinf((float)a); } \
  static inline T __hfma(T a, T b, T c) { return T(fma((double)a, (double)b, (double)c)); } \
  static inline T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
CPU_HALF(__half, __half2, cpu_f16_widen, cpu_f16_round)
CPU_HALF(__nv_bfloat16, __nv_bfloat162, cpu_bf16_widen, cpu_bf16_round)
