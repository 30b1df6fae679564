/* A driver of CUDA for tests, whose device is the host: libcuda.so.1 of the functions that herringbone-sys asks for.
 *
 * A stream is a thread with a queue. So copies overlap, and waits wait. Arguments that the real driver would refuse are refused.
 * Where cuda.h is found it checks the signatures; -DNO_VALUES leaves out what old drivers lack. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_include) && __has_include(<cuda.h>)
#include <cuda.h>
#else
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef struct context *CUcontext;
typedef struct stream_handle *CUstream;
typedef struct event_handle *CUevent;
typedef int CUstreamCaptureStatus, CUstreamCaptureMode;
#define CUDAAPI
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#define cuStreamWriteValue32 cuStreamWriteValue32_v2
#endif

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600 };
enum { NON_BLOCKING = 1, DISABLE_TIMING = 2, PORTABLE_AND_MAPPED = 3, RELAXED = 2, PAGE = 4096 };
/* NVIDIA's driver knows its memory. This one knows that no program has any there. */
#define NOTHING_BELOW ((uintptr_t)1 << 32)
enum kind { COPY, RECORD, AWAIT, WAIT_VALUE, WRITE_VALUE };

struct event {
    int64_t recorded, done;
};

struct item {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct event *event;
    int64_t number;
    uint32_t value;
    struct item *next;
};

struct stream {
    pthread_mutex_t lock;
    struct item *first, *last;
    int64_t queued, done;
};

static struct stream legacy;
static int resting, capturing;
static __thread int contexts;

static void nap(void) { usleep(20); }

static void run_item(struct item *item) {
    switch (item->kind) {
    case COPY:
        nap();
        memcpy(item->to, item->from, item->bytes);
        return;
    case RECORD:
        __atomic_store_n(&item->event->done, item->number, __ATOMIC_RELEASE);
        return;
    case AWAIT:
        while (__atomic_load_n(&item->event->done, __ATOMIC_ACQUIRE) < item->number)
            nap();
        return;
    case WAIT_VALUE:
        while ((int32_t)(__atomic_load_n((uint32_t *)item->to, __ATOMIC_ACQUIRE) - item->value) < 0)
            nap();
        return;
    case WRITE_VALUE:
        __atomic_store_n((uint32_t *)item->to, item->value, __ATOMIC_RELEASE);
    }
}

static void *run(void *of) {
    struct stream *stream = of;
    for (;;) {
        struct item *item = NULL;
        if (!__atomic_load_n(&resting, __ATOMIC_ACQUIRE)) {
            pthread_mutex_lock(&stream->lock);
            item = stream->first;
            if (item)
                stream->first = item->next;
            pthread_mutex_unlock(&stream->lock);
        }
        if (!item) {
            nap();
            continue;
        }
        run_item(item);
        free(item);
        __atomic_add_fetch(&stream->done, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void begin(struct stream *stream) {
    pthread_t thread;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_create(&thread, NULL, run, stream);
}

static struct stream *stream_of(CUstream handle) { return handle ? (struct stream *)handle : &legacy; }

static CUresult put(CUstream handle, struct item made) {
    struct stream *stream = stream_of(handle);
    struct item *item = malloc(sizeof *item);
    if (!contexts)
        return INVALID_CONTEXT;
    *item = made;
    item->next = NULL;
    pthread_mutex_lock(&stream->lock);
    if (stream->first)
        stream->last->next = item;
    else
        stream->first = item;
    stream->last = item;
    __atomic_add_fetch(&stream->queued, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}

CUresult CUDAAPI cuInit(unsigned flags) {
    static int calls;
    if (!__atomic_fetch_add(&calls, 1, __ATOMIC_ACQ_REL))
        begin(&legacy);
    return flags ? INVALID_VALUE : OK;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
    *text = error == INVALID_DEVICE ? "invalid device ordinal" : "the driver of the tests refuses it";
    return OK;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? OK : INVALID_DEVICE;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)&legacy;
    return device ? INVALID_DEVICE : OK;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
    contexts++;
    return context == (CUcontext)&legacy ? OK : INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) {
    *context = NULL;
    return contexts-- > 0 ? OK : INVALID_CONTEXT;
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags) {
    struct stream *made = calloc(1, sizeof *made);
    begin(made);
    *stream = (CUstream)made;
    return flags == NON_BLOCKING ? OK : INVALID_VALUE;
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) { return stream ? OK : INVALID_VALUE; }

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    struct stream *stream = stream_of(handle);
    while (__atomic_load_n(&stream->done, __ATOMIC_ACQUIRE) < __atomic_load_n(&stream->queued, __ATOMIC_ACQUIRE))
        nap();
    return OK;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    struct stream *stream = stream_of(handle);
    int64_t queued = __atomic_load_n(&stream->queued, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&stream->done, __ATOMIC_ACQUIRE) < queued ? NOT_READY : OK;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags) {
    struct event *event = (struct event *)handle;
    return flags ? INVALID_VALUE : put(stream, (struct item){.kind = AWAIT, .event = event, .number = event->recorded});
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = !stream && capturing;
    return OK;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static __thread CUstreamCaptureMode current;
    CUstreamCaptureMode given = *mode;
    *mode = current;
    current = given;
    return given <= RELAXED ? OK : INVALID_VALUE;
}

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags) {
    *event = (CUevent)calloc(1, sizeof(struct event));
    return flags == DISABLE_TIMING ? OK : INVALID_VALUE;
}

CUresult CUDAAPI cuEventDestroy(CUevent event) { return event ? OK : INVALID_VALUE; }

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream) {
    static int64_t next;
    struct event *event = (struct event *)handle;
    event->recorded = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
    return put(stream, (struct item){.kind = RECORD, .event = event, .number = event->recorded});
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    struct event *event = (struct event *)handle;
    return __atomic_load_n(&event->done, __ATOMIC_ACQUIRE) >= event->recorded ? OK : NOT_READY;
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    if ((uintptr_t)from < NOTHING_BELOW) return INVALID_VALUE;
    return put(stream, (struct item){.kind = COPY, .to = to, .from = (void *)from, .bytes = bytes});
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    if ((uintptr_t)to < NOTHING_BELOW) return INVALID_VALUE;
    return put(stream, (struct item){.kind = COPY, .to = (void *)to, .from = from, .bytes = bytes});
}

CUresult CUDAAPI cuMemHostRegister(void *start, size_t bytes, unsigned flags) {
    return (uintptr_t)start % PAGE == 0 && bytes && flags == PORTABLE_AND_MAPPED ? OK : INVALID_VALUE;
}

CUresult CUDAAPI cuMemHostUnregister(void *start) { return (uintptr_t)start % PAGE == 0 ? OK : INVALID_VALUE; }

CUresult CUDAAPI cuMemHostAlloc(void **start, size_t bytes, unsigned flags) {
    *start = aligned_alloc(PAGE, bytes);
    memset(*start, 0xff, bytes);
    return flags == PORTABLE_AND_MAPPED ? OK : INVALID_VALUE;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *address, void *start, unsigned flags) {
    *address = (CUdeviceptr)start;
    return flags ? INVALID_VALUE : OK;
}

#ifndef NO_VALUES
CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
    return flags ? INVALID_VALUE : put(stream, (struct item){.kind = WAIT_VALUE, .to = (void *)word, .value = value});
}

CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
    return flags ? INVALID_VALUE : put(stream, (struct item){.kind = WRITE_VALUE, .to = (void *)word, .value = value});
}
#endif

/* For the tests. */

void test_write(void *to, const void *from, size_t bytes) {
    contexts++;
    put(NULL, (struct item){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    contexts--;
}

void test_rest(int rests) { __atomic_store_n(&resting, rests, __ATOMIC_RELEASE); }

void test_capture(int captures) { capturing = captures; }
