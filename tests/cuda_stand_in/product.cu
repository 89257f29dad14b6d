// Products of matrices by tensor cores: 16 x 16 by wmma, and 16 x 8 by ldmatrix and mma. Counts wrong elements per lane.
#include <cuda_fp16.h>
#include <mma.h>
typedef unsigned int uint32_t;
struct uint_4 { uint32_t i_0, i_1, i_2, i_3; };
struct uint_2 { uint32_t i_0, i_1; };
struct float_4 { float i_0, i_1, i_2, i_3; };
extern "C" __global__ void __launch_bounds__(32) product(int *wrong) {
    extern __shared__ __align__(128) char memory[];
    __half *a = (__half *)memory, *b = a + 256;
    float *c = (float *)(b + 256);
    int lane = threadIdx.x, errors = 0;
    for (int i = lane; i < 256; i += 32) { a[i] = (__half)(float)(i * 7 % 11 - 5); b[i] = (__half)(float)(i * 5 % 13 - 6); }
    __syncwarp();
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> x;
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half, nvcuda::wmma::col_major> y;
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> z;
    nvcuda::wmma::fill_fragment(z, 1.0f);
    nvcuda::wmma::load_matrix_sync(x, a, 16);
    nvcuda::wmma::load_matrix_sync(y, b, 16);
    nvcuda::wmma::mma_sync(z, x, y, z);
    nvcuda::wmma::store_matrix_sync(c, z, 16, nvcuda::wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
        float sum = 1.0f;
        for (int k = 0; k < 16; k++) sum += (float)a[i / 16 * 16 + k] * (float)b[i % 16 * 16 + k];
        errors += c[i] != sum;
    }
    uint32_t row = __cvta_generic_to_shared(a + (lane % 8 + lane / 8 % 2 * 8) * 16 + lane / 16 * 8);
    uint_4 m; asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m.i_0), "=r"(m.i_1), "=r"(m.i_2), "=r"(m.i_3) : "r"(row));
    uint32_t line = __cvta_generic_to_shared(b + lane % 16 * 16);
    uint_2 n; asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%0, %1}, [%2];" : "=r"(n.i_0), "=r"(n.i_1) : "r"(line));
    float_4 d, e = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" : "=f"(d.i_0), "=f"(d.i_1), "=f"(d.i_2), "=f"(d.i_3) : "r"(m.i_0), "r"(m.i_1), "r"(n.i_0), "f"(e.i_0), "f"(e.i_1), "f"(e.i_2), "f"(e.i_3));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" : "=f"(e.i_0), "=f"(e.i_1), "=f"(e.i_2), "=f"(e.i_3) : "r"(m.i_2), "r"(m.i_3), "r"(n.i_1), "f"(d.i_0), "f"(d.i_1), "f"(d.i_2), "f"(d.i_3));
    float found[4] = {e.i_0, e.i_1, e.i_2, e.i_3};
    for (int i = 0; i < 4; i++) {
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) sum += (float)a[(lane / 4 + i / 2 * 8) * 16 + k] * (float)b[k * 16 + lane % 4 * 2 + i % 2];
        errors += found[i] != sum;
    }
    wrong[lane] = errors;
}
