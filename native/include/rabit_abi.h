/* The C ABI of librabit: the only public header.  Valid C11 and C++20; cffi reads the block between
 * the two markers, so there is no second copy to drift.
 *
 * Every function returns a rabit_code unless it says otherwise, never throws, and may be called
 * from any thread.  No function calls back into the caller's language.  Pointers passed in are
 * borrowed for the call; tensor memory until the handle has finished. */
#ifndef RABIT_ABI_H_
#define RABIT_ABI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RABIT_API __attribute__((visibility("default")))
#else
#define RABIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef-begin */
#define RABIT_ABI_VERSION 1

typedef struct rabit_engine rabit_engine;             /* opaque */
typedef struct rabit_pool rabit_pool;                 /* opaque */
typedef struct rabit_store_client rabit_store_client; /* opaque */
typedef struct rabit_store rabit_store;               /* opaque */
typedef struct rabit_job rabit_job;                   /* opaque */
typedef struct rabit_xla rabit_xla;                   /* opaque */
typedef struct rabit_part_server rabit_part_server;   /* opaque */
typedef struct rabit_part_reader rabit_part_reader;   /* opaque */
typedef uint64_t rabit_handle;                        /* 0 is never a handle */

typedef enum rabit_code {
  RABIT_OK = 0,
  RABIT_INVALID_ARGUMENT = 1,
  RABIT_MISMATCH = 2,
  RABIT_UNSUPPORTED = 3,
  RABIT_PEER_LOST = 4,
  RABIT_TIMED_OUT = 5,
  RABIT_ABORTED = 6,
  RABIT_RESOURCE_EXHAUSTED = 7,
  RABIT_INTERNAL = 8
} rabit_code;

typedef enum rabit_dtype {
  RABIT_UINT8 = 0,
  RABIT_INT8 = 1,
  RABIT_UINT16 = 2,
  RABIT_INT16 = 3,
  RABIT_INT32 = 4,
  RABIT_INT64 = 5,
  RABIT_FLOAT16 = 6,
  RABIT_FLOAT32 = 7,
  RABIT_FLOAT64 = 8,
  RABIT_BOOL = 9,
  RABIT_BFLOAT16 = 10,
  /* Exchanged, not combined. */
  RABIT_UINT32 = 11,
  RABIT_UINT64 = 12,
  RABIT_FLOAT8_E4M3FN = 13,
  RABIT_FLOAT8_E5M2 = 14,
  RABIT_FLOAT8_E4M3FNUZ = 15,
  RABIT_FLOAT8_E5M2FNUZ = 16,
  RABIT_FLOAT8_E8M0FNU = 17,
  /* Summed and averaged, as pairs of floats. */
  RABIT_COMPLEX64 = 18,
  RABIT_COMPLEX128 = 19
} rabit_dtype;

typedef enum rabit_reduce_op {
  RABIT_AVERAGE = 0,
  RABIT_SUM = 1,
  RABIT_MIN = 3,
  RABIT_MAX = 4,
  RABIT_PRODUCT = 5,
  RABIT_BIT_AND = 6,
  RABIT_BIT_OR = 7,
  RABIT_BIT_XOR = 8
} rabit_reduce_op;

typedef enum rabit_kind {
  RABIT_ALLREDUCE = 0,
  RABIT_ALLGATHER = 1,
  RABIT_BROADCAST = 2,
  RABIT_REDUCE = 3,
  RABIT_REDUCESCATTER = 4,
  RABIT_ALLTOALL = 5,
  RABIT_GATHER = 6,
  RABIT_SCATTER = 7,
  RABIT_BARRIER = 8,
  RABIT_SEND = 9,
  RABIT_RECV = 10,
  RABIT_JOIN = 11,
  /* Input: one int64, not negative; output: the bitwise OR over the group.  Travels inside the
   * negotiation and moves no data. */
  RABIT_VOTE = 12
} rabit_kind;

typedef struct rabit_tensor {
  void* data;           /* output: NULL lets the engine allocate */
  int64_t count;        /* elements */
  const int64_t* shape; /* ndim extents; NULL with ndim 0 is a scalar */
  int32_t ndim;
  int32_t dtype;       /* rabit_dtype */
  int32_t device_kind; /* DLPack codes: 1 is the CPU */
  int32_t device_index;
  /* Of an input on a device, or of an output without one: a CUstream, 0 the default one.  What is
   * on it at submission comes before the operation reads and writes. */
  uint64_t stream;
} rabit_tensor;

typedef struct rabit_request {
  uint32_t struct_size; /* sizeof, so that fields can be appended later */
  int32_t kind;         /* rabit_kind */
  int32_t reduce_op;    /* rabit_reduce_op */
  int32_t root;         /* global rank; the partner for send and recv */
  int32_t priority;     /* larger runs first */
  int32_t group;        /* 0: all ranks */
  int32_t codec;        /* 0: none; else from rabit_add_codec, on this rank */
  int32_t backend;      /* -1: the engine chooses; else from rabit_find_backend */
  double prescale;
  double postscale;
  const char* name;      /* UTF-8, 1 to 1024 bytes */
  const int64_t* splits; /* alltoall, scatter: rows for each rank of the group, or NULL */
  int32_t splits_count;
  /* How the elements lie in memory that is not row-major: the axes of the tensor from the outermost
   * on, four bits each, lowest first; 0: row-major.  Ranks that differ in it are a mismatch. */
  int32_t axis_order;
  rabit_tensor input;
  rabit_tensor output;
  /* Called once on a native thread when the handle has finished, or NULL.  For runtimes with a
   * native dependency engine; it must not block and must not enter an interpreter. */
  void (*notify)(void* context, int32_t code, const char* message);
  void* notify_context;
  /* With a codec: what it has not sent in earlier calls, as many elements as the input and of its
   * dtype, or NULL; twice as many with "sign:phases=2", where the second half is for sums.  Read
   * and written until the handle has finished. */
  void* residual;
  uint64_t seed; /* of a codec's random numbers: equal on all ranks, another one in every call */
} rabit_request;

/* How work is cut, joined and held back; below zero: as it is. */
typedef struct rabit_tunables {
  int64_t partition_bytes;
  int64_t fusion_bytes; /* 0: no fusion */
  int64_t credit_bytes; /* 0: no limit */
  int32_t lanes;        /* at most those that were started */
} rabit_tunables;

RABIT_API uint32_t rabit_abi_version(void);
/* The message and the culprit rank (-1: none) of this thread's last failed call. */
RABIT_API const char* rabit_last_error(void);
RABIT_API int32_t rabit_last_culprit(void);

/* options: lines "key=value"; an unknown key is an error that names the nearest known one. */
RABIT_API int32_t rabit_start(const char* options, rabit_engine** engine);
/* What of a process outlives its engines: its port, its client of the store and its connections.
 * Options as above, of which member, store, secret, bind_address and connect_timeout_ms count.
 * member is the number of this process among all that the job ever has; it is never used twice. */
RABIT_API int32_t rabit_pool_open(const char* options, rabit_pool** pool);
/* An engine over a pool, after the one before has stopped; what that one has handed out stays valid
 * until it is freed.  Options as above, with members (the numbers of its processes in the order of
 * their ranks, "3,0,5") in place of rank and size, and a higher epoch; both are equal on all members.
 * Connections between earlier members go on; processes that are not among them are refused. */
RABIT_API int32_t rabit_start_over(rabit_pool* pool, const char* options, rabit_engine** engine);
/* After its last engine has stopped; or with it, if one runs. */
RABIT_API void rabit_pool_close(rabit_pool* pool);
RABIT_API int32_t rabit_topology(rabit_engine* engine, int32_t group, int32_t* rank, int32_t* size);
RABIT_API int32_t rabit_add_group(rabit_engine* engine, const int32_t* ranks, int32_t count,
                                  int64_t timeout_ms, int32_t* group);
RABIT_API int32_t rabit_remove_group(rabit_engine* engine, int32_t group, int64_t timeout_ms);
/* The trees that a group's collectives send along; all its ranks call it with the same text, and it
 * blocks until they have.  plan: lines "size N", "bytes_min N" (smaller exchanges do not follow it),
 * "wide_sums 1" (sums in a wider type than the tensor's do), "pipeline_bytes N" (what a link carries
 * in the latency of a message), and one for each tree: "allreduce ROOT WEIGHT up P0 P1 ... down P0
 * P1 ...", with the parent of each rank of the group, -1 for the root's, "broadcast" and "allgather"
 * with down alone, "reduce" and "reducescatter" with up alone; "order P0 P1 ..." is the order on an
 * allreduce's ring.  "": none.  What is agreed later follows it; RABIT_MISMATCH names who differs. */
RABIT_API int32_t rabit_set_plan(rabit_engine* engine, int32_t group, const char* plan,
                                 int64_t timeout_ms);
/* spec: "levels:bits=4,block=512"; what is left out has its default. */
RABIT_API int32_t rabit_add_codec(rabit_engine* engine, const char* spec, int32_t* codec);
RABIT_API int32_t rabit_find_backend(rabit_engine* engine, const char* name, int32_t* backend);

/* All or none; the requests of one call become ready together. */
RABIT_API int32_t rabit_submit(rabit_engine* engine, const rabit_request* requests, int32_t count,
                               rabit_handle* handles);
/* The caller turns a request down before it submits it, as rabit_submit does itself with one that
 * it refuses: the other ranks of the group fail that round with RABIT_INVALID_ARGUMENT and the
 * reason. Of the request, struct_size, kind, name, group and root count. */
RABIT_API int32_t rabit_refuse(rabit_engine* engine, const rabit_request* request,
                               const char* reason);
/* rabit_submit and rabit_wait in one, for one request, with fewer thread changes.  *handle is 0 if
 * the request was refused; else it has to be released. */
RABIT_API int32_t rabit_run(rabit_engine* engine, const rabit_request* request, int64_t timeout_ms,
                            rabit_handle* handle);
/* RABIT_TIMED_OUT leaves the handle open; timeout_ms -1 waits without limit.  -n, with n > 1, is a
 * slice of such a wait: it returns after n ms, and the caller comes back and does nothing else. */
RABIT_API int32_t rabit_wait(rabit_engine* engine, rabit_handle handle, int64_t timeout_ms);
/* The same for whoever goes on working on a device: returns when nothing but the device is left to
 * wait for, and has `stream` wait for that, a CUstream of the device of the operation's input.  A
 * result in the memory of the host it waits for.  rabit_wait, and the next call for new work, report
 * what fails later. */
RABIT_API int32_t rabit_wait_on_stream(rabit_engine* engine, rabit_handle handle, uint64_t stream,
                                       int64_t timeout_ms);
/* Waits until one of count handles has finished, well or not; *which is its place.  news: NULL, or
 * in and out how many operations of the engine have finished, 0 at first; then it returns with a
 * *which of -1 as well, as soon as there are more.  RABIT_TIMED_OUT otherwise; below 0: no limit. */
RABIT_API int32_t rabit_wait_any(rabit_engine* engine, const rabit_handle* handles, int32_t count,
                                 int64_t timeout_ms, int32_t* which, uint64_t* news);
RABIT_API int32_t rabit_is_done(rabit_engine* engine, rabit_handle handle, int32_t* done);
/* shape has room for 8 extents, splits for the size of the group (or NULL); valid until release. */
RABIT_API int32_t rabit_output(rabit_engine* engine, rabit_handle handle, rabit_tensor* output,
                               int64_t* shape, int64_t* splits);
RABIT_API int32_t rabit_release(rabit_engine* engine, rabit_handle handle);

/* Runs one operation on the calling thread and returns when it is done.  Nothing is negotiated:
 * every rank makes the same ordered calls in the same order, over all groups that ranks share.
 * Kinds: allreduce, broadcast (in output), allgather, reducescatter and alltoall with equal parts,
 * barrier; name, priority, codec, splits and notify are not used.  Any failure, the timeout
 * included, fails the engine. */
RABIT_API int32_t rabit_run_ordered(rabit_engine* engine, const rabit_request* request,
                                    int64_t timeout_ms);

/* What another runtime's dependency engine offers to jobs; each function returns 0 for success. */
typedef struct rabit_job_runtime {
  /* Where the elements of an operand are; asked when the job runs. */
  int (*address)(void* operand, void** data);
  int (*release)(void* operand);
  /* Has function(context, completion, parameter) called where its operations run, and then
   * deleter(parameter), from any thread; `place` is handed on, reads and writes are none, the
   * property is its default. */
  int (*push)(void (*function)(void* context, void* completion, void* parameter), void* parameter,
              void (*deleter)(void* parameter), const void* place, void** reads, int reads_count,
              void** writes, int writes_count, const void* property, int priority, const char* name,
              bool wait);
  const void* place; /* valid as long as the runtime is */
} rabit_job_runtime;

/* Requests that another runtime's dependency engine submits when their operands are ready: input.data
 * and output.data are operands, which the job releases.  All is copied; the engine outlives it. */
RABIT_API int32_t rabit_job_create(rabit_engine* engine, const rabit_request* requests,
                                   int32_t count, const rabit_job_runtime* runtime,
                                   rabit_job** job);
/* For the other runtime to call, once; does not block.  completion: three pointers (function, owner,
 * token), which are copied.  function(owner, token, error) is called once when all requests have
 * finished, by an operation that the job pushes: runtimes keep lists of errors that their own
 * threads alone may touch.  error is NULL, or a const std::runtime_error whose text is "<class>:
 * <message>", valid for the call.  context is not used. */
RABIT_API void rabit_job_run(void* context, void* completion, void* job);
/* For the other runtime to call, once, when the job has finished or is never to run. */
RABIT_API void rabit_job_release(void* job);

/* What programs of XLA name (NULL: no memory); the engine that their calls go to (NULL: they fail),
 * freed after the next; their XLA_FFI_Handler, whose frame is described in abi/xla_calls.cc. */
RABIT_API rabit_xla* rabit_xla_open(void);
RABIT_API void rabit_xla_use(rabit_xla* xla, rabit_engine* engine);
RABIT_API void* rabit_xla_run(void* frame);

/* Rank 0 only; returns at once.  Every rank schedules so from the next agreement on, with
 * operations in flight; rabit_stats tells what is in force. */
RABIT_API int32_t rabit_propose_tunables(rabit_engine* engine, const rabit_tunables* tunables);
/* Rank 0 only; returns at once.  Every rank schedules as if nothing had been proposed: sizes follow
 * from the measured link again where they did. */
RABIT_API int32_t rabit_reset_tunables(rabit_engine* engine);

/* What summation servers do with an update, with the option ps_async. */
typedef enum rabit_update_mode {
  RABIT_UPDATE_ADD = 1,  /* add it to what they keep */
  RABIT_UPDATE_FILL = 2, /* keep it, if nothing is kept yet */
  RABIT_UPDATE_CLOCK = 3 /* int64[2]: steps that this rank has finished (below 0: it takes part no more),
                            and how many it may be ahead of the slowest (below 0: any). The answer
                            comes when it may go on: how many it is ahead, and 1 if it had to wait. */
} rabit_update_mode;
/* Asks no other rank.  `data` is of the caller, in the memory of the host, and becomes what the servers
 * keep under `key`, which stands for one size and type.  Blocks for at most timeout_ms; one at a time,
 * whatever the thread. */
RABIT_API int32_t rabit_update(rabit_engine* engine, uint64_t key, int32_t mode, void* data,
                               int64_t count, int32_t dtype, int64_t timeout_ms);

/* What links carry.  flows: the round, by which they ascend, and two ranks of each; flows of a round
 * send at once.  found: of each the bytes per second, and the bytes sent in order to find them, the
 * same on all ranks.  An ordered call of all ranks: a failure fails the engine. */
RABIT_API int32_t rabit_measure_flows(rabit_engine* engine, const int32_t* flows, int32_t count,
                                      double* found, int64_t timeout_ms);

RABIT_API int32_t rabit_start_timeline(rabit_engine* engine, const char* path, int32_t mark_cycles);
RABIT_API int32_t rabit_stop_timeline(rabit_engine* engine);
/* Writes at most capacity bytes with a final NUL; *needed is the size that would fit. */
RABIT_API int32_t rabit_stats(rabit_engine* engine, char* json, size_t capacity, size_t* needed);
RABIT_API int32_t rabit_stop(rabit_engine* engine, int64_t timeout_ms);
/* For a process that is about to end because of `reason` ("ValueError: no such file", UTF-8): the
 * other ranks fail with RABIT_PEER_LOST, this rank as the culprit and the reason in the text.  Open
 * handles of this engine get RABIT_ABORTED.  Returns when the others have been told and the engine
 * has ended, or after timeout_ms; does nothing to an engine that has stopped or failed. */
RABIT_API int32_t rabit_abort(rabit_engine* engine, const char* reason, int64_t timeout_ms);
RABIT_API void rabit_free(rabit_engine* engine);

/* The rendezvous board that a launcher, or rank 0, serves.  Options: address, port (0: any),
 * secret (hex).  The board lives in its own thread until rabit_store_stop. */
RABIT_API int32_t rabit_store_start(const char* options, rabit_store** store, int32_t* port);
RABIT_API void rabit_store_stop(rabit_store* store);

/* A process that reads and writes a board, the one that serves it too.  Options: address
 * (host:port), secret (hex), rank (of this process, for messages; -1), timeout_ms. Thread-safe. */
#define RABIT_STORE_VALUE_MAX 65536
RABIT_API int32_t rabit_store_connect(const char* options, rabit_store_client** client);
RABIT_API void rabit_store_disconnect(rabit_store_client* client);
RABIT_API int32_t rabit_store_set(rabit_store_client* client, const char* key, const void* value,
                                  size_t bytes);
/* Waits until the key has a higher version than *version, which then is that of the value; a
 * version counts how often the key was set, 0: never.  Writes at most capacity bytes; *bytes is the
 * size of the value, RABIT_STORE_VALUE_MAX at most.  RABIT_TIMED_OUT after timeout_ms; 0 looks and
 * returns. */
RABIT_API int32_t rabit_store_watch(rabit_store_client* client, const char* key, int64_t timeout_ms,
                                    void* value, size_t capacity, size_t* bytes, uint64_t* version);
/* Sets the key if it has *version still: *is_mine is 1.  In any case *version and *held are what
 * the key holds then. */
RABIT_API int32_t rabit_store_compare_and_set(rabit_store_client* client, const char* key,
                                              const void* value, size_t bytes, void* held,
                                              size_t capacity, size_t* held_bytes,
                                              uint64_t* version, int32_t* is_mine);

/* The life of a summation server: serves the ranks that meet at the store with the option servers,
 * and after them, and returns when the store is gone.  Options: rabit_start's, rank is its number. */
RABIT_API int32_t rabit_serve(const char* options);

/* Memory of this process that other ranks read, served by a thread of the library.  Options: address
 * (of this host), secret, rank.  A part is closed when it is added, and while its owner writes it: when
 * close returns, nobody reads it.  Its memory stays valid until the server has stopped. */
RABIT_API int32_t rabit_part_server_start(const char* options, rabit_part_server** server,
                                          int32_t* port);
RABIT_API void rabit_part_server_stop(rabit_part_server* server);
RABIT_API int32_t rabit_part_server_add(rabit_part_server* server, uint64_t part, const void* data,
                                        size_t bytes);
RABIT_API int32_t rabit_part_server_close(rabit_part_server* server, uint64_t part);
RABIT_API int32_t rabit_part_server_open(rabit_part_server* server, uint64_t part, uint64_t version);

typedef struct rabit_part_read {
  int32_t rank; /* that serves the part */
  uint64_t part, version, bytes;
  void* into;
} rabit_part_read;
/* Options: addresses (of the servers, by rank, with commas between), secret, rank, silence_ms. */
RABIT_API int32_t rabit_part_reader_open(const char* options, rabit_part_reader** reader);
RABIT_API void rabit_part_reader_close(rabit_part_reader* reader);
/* Waits until all are read, each whole and of its version; errors of an owner have it as culprit. */
RABIT_API int32_t rabit_part_reader_read(rabit_part_reader* reader, const rabit_part_read* reads,
                                         int32_t count, int64_t timeout_ms);

/* For gradients of low rank, on the caller's thread: products of a row-major matrix of `rows` by
 * `columns` with thin ones of `rank` columns.  A left one has `rows` by `rank` elements; a right
 * one is kept transposed, `rank` by `columns`.  Bits are the same on every machine.  Here:
 * whole = x + factor * residual, NULL: x;  left = whole * right. */
RABIT_API int32_t rabit_thin_times(int64_t rows, int64_t columns, int32_t rank, const float* x,
                                   const float* residual, float factor, const float* right,
                                   float* whole, float* left);
/* Makes the columns of a left one orthonormal, rank <= rows; those that are zero or depend on
 * others become some that do not. */
RABIT_API int32_t rabit_thin_orthonormal(int64_t rows, int32_t rank, float* left);
/* right = transposed whole * left. */
RABIT_API int32_t rabit_thin_transposed_times(int64_t rows, int64_t columns, int32_t rank,
                                              const float* whole, const float* left, float* right);
/* value = left * mean;  whole -= left * mine. */
RABIT_API int32_t rabit_thin_expand(int64_t rows, int64_t columns, int32_t rank, const float* left,
                                    const float* mean, const float* mine, float* value,
                                    float* whole);

/* For gradients as waves, on the caller's thread: of each of `chunks` rows of `chunk` elements the
 * `kept` strongest waves of an orthonormal basis, which has one in each row and is given transposed,
 * too.  Bits are the same on every machine.  Here: places and values of those waves, `chunks` by
 * `kept`, and what they amount to. */
RABIT_API int32_t rabit_waves_split(int64_t chunks, int32_t chunk, int32_t kept, const float* basis,
                                    const float* transposed, const float* x, uint16_t* places,
                                    float* values, float* sent);
/* mean: of each wave over the ranks that have sent it, as an array of the first shape; signs not
 * 0: its signs, NaN where it is not finite.  places and values: `ranks` by `chunks` by `kept`. */
RABIT_API int32_t rabit_waves_mean(int64_t chunks, int32_t chunk, int32_t kept, int32_t ranks,
                                   const float* basis, const uint16_t* places, const float* values,
                                   int32_t signs, float* mean);

/* What this build and machine offer, as JSON: version, kernels, transports, backends, codecs. */
RABIT_API int32_t rabit_capabilities(char* json, size_t capacity, size_t* needed);
/* The driver of CUDA tensors as JSON: library, version, devices; or why there is none.  Starts it:
 * a child that this process forks afterwards cannot use CUDA. */
RABIT_API int32_t rabit_describe_cuda(char* json, size_t capacity, size_t* needed);
/* NCCL as JSON: library, version; or why there is none.  Loads `library`; "": the one that the
 * process has loaded, or that the loader finds.  Starts no device. */
RABIT_API int32_t rabit_describe_nccl(const char* library, char* json, size_t capacity,
                                      size_t* needed);
/* cdef-end */

#ifdef __cplusplus
}
#endif
#endif /* RABIT_ABI_H_ */
