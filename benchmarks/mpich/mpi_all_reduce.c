/* MPI_Allreduce of floats of 64 B to 64 MiB, in place, as benchmarks/sizes.cc does it with leafpack:
 * compare.py builds both and runs them in turn. Usage: mpi_all_reduce ROUNDS LEAST MOST */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int Compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) return 2;
  const int rounds = atoi(argv[1]);
  const long long least = atoll(argv[2]), most = atoll(argv[3]);
  double *times = malloc(sizeof(double) * (size_t)rounds);
  for (long long bytes = least; bytes <= most; bytes *= 4) {
    float *data = malloc((size_t)bytes);
    memset(data, 0, (size_t)bytes);
    long long calls = (4LL << 20) / bytes;
    calls = calls < 2 ? 2 : calls > 500 ? 500 : calls;
    for (int round = -1; round < rounds; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (long long call = 0; call < calls; ++call) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      if (round >= 0) times[round] = (MPI_Wtime() - start) / (double)calls;
    }
    qsort(times, (size_t)rounds, sizeof(double), Compare);
    if (rank == 0) {
      printf("{\"mode\": \"MPICH\", \"ranks\": %d, \"bytes\": %lld, \"median_s\": %.9g, \"least_s\": %.9g}\n",
             ranks, bytes, times[rounds / 2], times[0]);
      fflush(stdout);
    }
    free(data);
  }
  free(times);
  MPI_Finalize();
  return 0;
}
