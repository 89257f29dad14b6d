// Tensor-core instructions for g++: `nvcuda::wmma` of mma.h, and the functions by which nvrtc.rs replaces inline
// PTX. All lanes of a warp meet in each; products are exact and sums are in f32, as on a GPU.
extern "C" void *shared_memory;
static inline unsigned cpu_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize; }
// A pointer of each lane, valid until this lane meets the others again.
template <class T> static inline __attribute__((always_inline)) T *const *cpu_lanes(T *mine) { return (T *const *)cpu_warp(CPU_GATHER, (unsigned long)mine, 0); }
namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K> struct cpu_shape;
template <int M, int N, int K> struct cpu_shape<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct cpu_shape<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct cpu_shape<accumulator, M, N, K> { enum { rows = M, columns = N }; };
// Element i of lane l is element 32 i + l of the matrix in row-major order.
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment : cpu_shape<Use, M, N, K> {
  enum { num_elements = cpu_shape<Use, M, N, K>::rows * cpu_shape<Use, M, N, K>::columns / 32 };
  T x[num_elements];
};
template <class F, class V> static inline void fill_fragment(F &f, V v) { for (int i = 0; i < F::num_elements; i++) f.x[i] = v; }
template <class F> static inline size_t cpu_place(int i, size_t stride, bool columns) { size_t e = 32 * i + cpu_lane(), row = e / F::columns, column = e % F::columns; return columns ? column * stride + row : row * stride + column; }
template <class F, class T> static inline void cpu_load(F &f, const T *p, size_t stride, bool columns) { for (int i = 0; i < F::num_elements; i++) f.x[i] = p[cpu_place<F>(i, stride, columns)]; __syncwarp(); }
template <class Use, int M, int N, int K, class T, class P> static inline void load_matrix_sync(fragment<Use, M, N, K, T, row_major> &f, const P *p, size_t stride) { cpu_load(f, p, stride, false); }
template <class Use, int M, int N, int K, class T, class P> static inline void load_matrix_sync(fragment<Use, M, N, K, T, col_major> &f, const P *p, size_t stride) { cpu_load(f, p, stride, true); }
template <class F, class P> static inline void load_matrix_sync(F &f, const P *p, size_t stride, layout_t layout) { cpu_load(f, p, stride, layout == mem_col_major); }
template <class F, class P> static inline void store_matrix_sync(P *p, const F &f, size_t stride, layout_t layout) { __syncwarp(); for (int i = 0; i < F::num_elements; i++) p[cpu_place<F>(i, stride, layout == mem_col_major)] = f.x[i]; }
template <class T> struct cpu_sum { typedef float type; };
template <> struct cpu_sum<int> { typedef int type; };
template <int M, int N, int K, class T, class U, class V, class LA, class LB>
static inline void mma_sync(fragment<accumulator, M, N, K, V> &d, const fragment<matrix_a, M, N, K, T, LA> &a, const fragment<matrix_b, M, N, K, T, LB> &b, const fragment<accumulator, M, N, K, U> &c) {
  typedef fragment<matrix_a, M, N, K, T, LA> A; typedef fragment<matrix_b, M, N, K, T, LB> B; typedef typename cpu_sum<U>::type S;
  struct pair { A a; B b; } mine = {a, b};
  pair *const *lanes = cpu_lanes(&mine);
  S left[M * K], right[K * N];
  for (int e = 0; e < M * K; e++) left[e] = (S)lanes[e % 32]->a.x[e / 32];
  for (int e = 0; e < K * N; e++) right[e] = (S)lanes[e % 32]->b.x[e / 32];
  for (int i = 0; i < d.num_elements; i++) {
    int e = 32 * i + cpu_lane(); S sum = 0;
    for (int k = 0; k < K; k++) sum += left[e / N * K + k] * right[k * N + e % N];
    d.x[i] = V(sum + (S)c.x[i]);
  }
  __syncwarp();
}
} }
// --- PTX, with the layouts of its reference
static inline unsigned __cvta_generic_to_shared(const void *p) { return (unsigned)((const char *)p - (const char *)shared_memory); }
static inline float cpu_f16_half(unsigned pair, int i) { return cpu_f16_widen((unsigned short)(pair >> 16 * i)); }
static inline void ptx_mma_m16n8k8_f32_f16(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned b0, float c0, float c1, float c2, float c3) {
  unsigned mine[3] = {a0, a1, b0}, *const *lanes = cpu_lanes(mine);
  float c[4] = {c0, c1, c2, c3}, d[4];
  for (int i = 0; i < 4; i++) {
    unsigned row = cpu_lane() / 4, column = cpu_lane() % 4 * 2 + i % 2; float sum = 0;
    for (int k = 0; k < 8; k++) sum += cpu_f16_half(lanes[row * 4 + k / 2][i / 2], k % 2) * cpu_f16_half(lanes[column * 4 + k / 2][2], k % 2);
    d[i] = sum + c[i];
  }
  __syncwarp();
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
static inline unsigned cpu_ldmatrix(const unsigned *rows, int matrix, bool transposed) {
  unsigned row = cpu_lane() / 4, pair = cpu_lane() % 4; unsigned short halves[2];
  for (int i = 0; i < 2; i++) { unsigned from = transposed ? pair * 2 + i : row, at = transposed ? row : pair * 2 + i; halves[i] = ((const unsigned short *)((const char *)shared_memory + rows[matrix * 8 + from]))[at]; }
  return halves[0] | (unsigned)halves[1] << 16;
}
template <bool transposed, class... R> static inline void cpu_ldmatrix_all(unsigned address, R &...to) {
  unsigned *const *lanes = cpu_lanes(&address), rows[32]; for (int i = 0; i < 32; i++) rows[i] = *lanes[i];
  int matrix = 0; ((to = cpu_ldmatrix(rows, matrix++, transposed)), ...);
  __syncwarp();
}
static inline void ptx_ldmatrix_x1(unsigned &a, unsigned p) { cpu_ldmatrix_all<false>(p, a); } static inline void ptx_ldmatrix_x1_trans(unsigned &a, unsigned p) { cpu_ldmatrix_all<true>(p, a); }
static inline void ptx_ldmatrix_x2(unsigned &a, unsigned &b, unsigned p) { cpu_ldmatrix_all<false>(p, a, b); } static inline void ptx_ldmatrix_x2_trans(unsigned &a, unsigned &b, unsigned p) { cpu_ldmatrix_all<true>(p, a, b); }
static inline void ptx_ldmatrix_x4(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned p) { cpu_ldmatrix_all<false>(p, a, b, c, d); } static inline void ptx_ldmatrix_x4_trans(unsigned &a, unsigned &b, unsigned &c, unsigned &d, unsigned p) { cpu_ldmatrix_all<true>(p, a, b, c, d); }
