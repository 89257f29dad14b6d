// Counts the kernels, copies and fills of a process, and measures the time in which its GPU runs any of them.
//
// CUDA's driver loads the library in CUDA_INJECTION64_PATH and calls `InitializeInjection`. CUPTI then delivers a record
// for each kernel, copy and fill. Results are written at exit to the file in GPU_CHECK_TRACE, with the process id
// appended. The declarations replace CUPTI's headers, which are not part of every installation: all versions of these
// records since CUDA 8 begin with the same fields.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MEMCPY = 1, MEMSET = 2, CONCURRENT_KERNEL = 10 };
struct record { uint32_t kind, other; uint64_t unused, start, end; };  // nanoseconds
typedef void request(uint8_t **, size_t *, size_t *);
typedef void complete(void *, uint32_t, uint8_t *, size_t, size_t);
int cuptiActivityEnable(int kind);
int cuptiActivityRegisterCallbacks(request *, complete *);
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, struct record **);
int cuptiActivityFlushAll(uint32_t forced);

static const size_t BUFFER = 4 << 20;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t kernels, copies, fills;
static struct span { uint64_t start, end; } *spans;
static size_t count, capacity;

static void requested(uint8_t **buffer, size_t *size, size_t *records) {
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0;  // as many as fit
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    struct record *record = NULL;
    pthread_mutex_lock(&lock);
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == 0) {
        uint64_t *counter = record->kind == CONCURRENT_KERNEL ? &kernels : record->kind == MEMCPY ? &copies
                          : record->kind == MEMSET ? &fills : NULL;
        if (!counter) continue;
        ++*counter;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            spans = realloc(spans, capacity * sizeof *spans);
            if (!spans) abort();
        }
        spans[count++] = (struct span){record->start, record->end};
    }
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static int by_start(const void *one, const void *other) {
    uint64_t a = ((const struct span *)one)->start, b = ((const struct span *)other)->start;
    return (a > b) - (a < b);
}

static void report(void) {
    cuptiActivityFlushAll(1);
    const char *path = getenv("GPU_CHECK_TRACE");
    char name[4096];
    if (!path || snprintf(name, sizeof name, "%s.%d", path, (int)getpid()) >= (int)sizeof name) return;
    pthread_mutex_lock(&lock);
    qsort(spans, count, sizeof *spans, by_start);
    uint64_t busy = 0, until = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t start = spans[i].start > until ? spans[i].start : until;
        if (spans[i].end > start) busy += spans[i].end - start;
        if (spans[i].end > until) until = spans[i].end;
    }
    FILE *file = fopen(name, "w");
    if (file) {
        fprintf(file, "launches %llu\ncopies %llu\nfills %llu\nbusy_us %llu\n", (unsigned long long)kernels,
                (unsigned long long)copies, (unsigned long long)fills, (unsigned long long)(busy / 1000));
        fclose(file);
    }
    pthread_mutex_unlock(&lock);
}

int InitializeInjection(void) {
    if (cuptiActivityRegisterCallbacks(requested, completed) != 0 || cuptiActivityEnable(CONCURRENT_KERNEL) != 0 ||
        cuptiActivityEnable(MEMCPY) != 0 || cuptiActivityEnable(MEMSET) != 0) {
        fprintf(stderr, "tracer: CUPTI refuses to record\n");
        return 0;
    }
    return atexit(report) == 0;
}
