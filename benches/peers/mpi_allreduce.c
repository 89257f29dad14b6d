/* MPI_Allreduce of f32 sums against its size, to be compared with `burn-ddp bench all-reduce`:
 * a barrier, then one timed call; medians over rank 0's rounds. One JSON object a line.
 *
 *   mpicc -O2 -o mpi_allreduce mpi_allreduce.c && mpirun -n 2 ./mpi_allreduce BYTES...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int arg = 1; arg < argc; arg++) {
        long bytes = atol(argv[arg]), count = bytes / 4;
        int rounds = bytes < 1000000 ? 2000 : bytes < 10000000 ? 300 : 60;
        float *buffer = malloc(count * 4 + 4);
        double *times = malloc(rounds * sizeof(double));
        for (int round = -2; round < rounds; round++) {
            for (long i = 0; i < count; i++) buffer[i] = 1.0f;
            MPI_Barrier(MPI_COMM_WORLD);
            double begun = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (round >= 0) times[round] = MPI_Wtime() - begun;
            if (count && buffer[count - 1] != (float)size) MPI_Abort(MPI_COMM_WORLD, 3);
        }
        qsort(times, rounds, sizeof(double), less);
        double median = times[rounds / 2];
        if (rank == 0)
            printf("{\"peer\": \"MPI_Allreduce\", \"ranks\": %d, \"bytes\": %ld, \"median_us\": %.1f, "
                   "\"min_us\": %.1f, \"algbw_gb_s\": %.3f}\n",
                   size, bytes, median * 1e6, times[0] * 1e6, bytes / median / 1e9);
        free(buffer);
        free(times);
    }
    MPI_Finalize();
    return 0;
}
