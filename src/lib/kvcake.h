/* libkvcake: stores of KV caches, and prompts that are restored from them by loading from the back
 * what the caller has not yet computed from the front. docs/library.md says how to use it.
 *
 * Rules that hold for every call:
 * - It returns KVCAKE_OK or one of the codes below; kvcake_last_error() has the message. What it
 * was to write is untouched when it fails.
 * - It may be made from any thread, also at the same time as any other. It sleeps only where it
 *   says so.
 * - Caches, restorations and chunks are numbers, never reused: a wrong or an old one is an error.
 * - Structures begin with their size, as the caller was compiled. Set them to zeros first: a zero
 * is the default.
 * - After a fork the child may open caches of its own; those of its parent are KVCAKE_FORKED.
 */
#ifndef KVCAKE_H
#define KVCAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVCAKE_API __attribute__((visibility("default")))
#else
#define KVCAKE_API
#endif

/* ---- codes; they never change meaning */
enum {
  KVCAKE_OK = 0,
  KVCAKE_INVALID_ARGUMENT = 1, /* the message names the argument and what it may be */
  KVCAKE_UNSUPPORTED = 2,
  KVCAKE_NOT_FOUND = 3,
  KVCAKE_CORRUPT = 4,
  KVCAKE_IO = 5,
  KVCAKE_FULL = 6, /* a limit was reached; the message names the option that sets it; or there is no
                      memory */
  KVCAKE_CANCELLED = 7, /* the cache's restorations are lost: one found no memory in the midst of a
                           call */
  KVCAKE_TIMEOUT = 8,
  KVCAKE_BUSY = 9,    /* not now: the message says what has to happen before */
  KVCAKE_FORKED = 10, /* it was opened before a fork, by another process */
  KVCAKE_INTERNAL = 11
};
/* "ok", "invalid argument", ...; "unknown" for other numbers. */
KVCAKE_API const char* kvcake_status_name(int status);
/* What went wrong in this thread's last call that failed; "" before the first. Valid until the
 * thread's next call. */
KVCAKE_API const char* kvcake_last_error(void);
KVCAKE_API const char* kvcake_version(void); /* "0.1.0" */

enum {
  KVCAKE_LOG_DEBUG = 1,
  KVCAKE_LOG_INFO = 2,
  KVCAKE_LOG_WARNING = 3,
  KVCAKE_LOG_ERROR = 4,
  KVCAKE_LOG_CRITICAL = 5
};
typedef void (*kvcake_log_function)(void* context, int level, const char* message);
/* Has messages of all caches of this process go to `function`, from any thread, one at a time, and
 * no longer to stderr; NULL: to stderr again. The function before is not running when the call
 * returns. A log function makes no calls of this library. */
KVCAKE_API int kvcake_set_log(kvcake_log_function function, void* context);

typedef uint64_t kvcake_cache; /* 0 is none, of all three */
typedef uint64_t kvcake_restoration;
typedef uint64_t kvcake_chunk;

/* The identity of a chunk: a SHA-256 over it and all that comes before it. */
typedef struct kvcake_key {
  uint8_t bytes[32];
} kvcake_key;

/* ---- caches */

/* A place that keeps chunks, with the meaning of `--store` and the flags beside it. */
typedef struct kvcake_store {
  size_t struct_size;
  const char* where;            /* what --store takes: a directory, redis://... or s3://...; with
                                 * ?codec=lossless one that keeps chunks smaller; no lossy codec is
                                 * taken */
  uint64_t capacity_bytes;      /* default: 20 GiB */
  double load_rate_bytes_per_s; /* default: as it is; else a slower link, for experiments */
  double load_latency_s;
} kvcake_store;

typedef struct kvcake_options {
  size_t struct_size;
  /* What determines the numbers and the layout of the KV cache, as text: weights, dtype, order of
   * bytes, rank. Caches share chunks exactly when their name space and the next three are equal. */
  const char* name_space;
  int32_t layers;       /* 1 to 487, to 136 with a codec, to 132 encrypted */
  int32_t chunk_tokens; /* default: 128 */
  uint64_t slab_bytes;  /* of one layer of one chunk; what they mean is the caller's business */
  const kvcake_store* stores; /* the fastest first; chunks are loaded from all at once and kept in
                                 the first */
  size_t store_count;         /* 0 to 8 */
  uint64_t memory_bytes;      /* for chunks that are here: loaded, about to be written, or cached;
                                 default: 1 GiB; taken from the system soon after opening */
  double write_queue_share;   /* of that, which chunks about to be written may take; default: 0.5 */
  double store_ttl_s;         /* chunks that nobody has used for so long go; default: never */
  double stall_timeout_s;     /* a store that is silent for so long is given up; default: 30 */
  const char* device; /* what computes, as text: costs that were measured are kept beside the
                         stores by it; default: nothing is kept */
} kvcake_options;

/* Opens the stores and reads their directories. The cache's threads run on the CPUs that the
 * calling thread may run on. KVCAKE_INVALID_ARGUMENT, KVCAKE_UNSUPPORTED, KVCAKE_NOT_FOUND,
 * KVCAKE_IO, KVCAKE_FULL. */
KVCAKE_API int kvcake_open(const kvcake_options* options, kvcake_cache* cache);
/* Ends the cache's restorations, writes what waits to be written, waits for reads that are under
 * way, and closes the stores; of writes those are given up that wait when nothing has been written
 * for a minute. KVCAKE_BUSY while chunks are acquired, or calls on it are under way:
 * nothing is closed then. */
KVCAKE_API int kvcake_close(kvcake_cache cache);

/* ---- keys */

/* The key before a prompt's first: of the name space, and of `salt` (any bytes, may be empty): only
 * prompts with the same salt share chunks. */
KVCAKE_API int kvcake_root(kvcake_cache cache, const void* salt, size_t salt_bytes,
                           kvcake_key* root);
/* The keys of the full chunks of `tokens` after `parent`: token_count / chunk_tokens of them, at
 * most key_count. */
KVCAKE_API int kvcake_keys(kvcake_cache cache, const kvcake_key* parent, const int32_t* tokens,
                           size_t token_count, kvcake_key* keys, size_t key_count);
/* Has what follows `key` depend on `extra` too, as on the hash of an image: give `extended` to
 * kvcake_keys as the parent of the chunk that it concerns, and to nothing else. */
KVCAKE_API int kvcake_extend_key(const kvcake_key* key, const void* extra, size_t extra_bytes,
                                 kvcake_key* extended);

/* Which chunks are here or stored. Stores that other processes write to are asked, for timeout_s at
 * most; 0: only what is known by now, at once. A hint: a chunk may be gone when it is read. */
enum { KVCAKE_IN_MEMORY = 1, KVCAKE_STORED = 2 };
KVCAKE_API int kvcake_lookup(kvcake_cache cache, const kvcake_key* keys, size_t key_count,
                             double timeout_s, uint8_t* held);

/* ---- restorations */

enum { KVCAKE_POLICY_CAKE = 0, KVCAKE_POLICY_COMPUTE = 1, KVCAKE_POLICY_LOAD = 2 };

typedef struct kvcake_request {
  size_t struct_size;
  const kvcake_key* keys;   /* of the prompt's full chunks */
  size_t key_count;         /* at most 1 << 20 */
  const kvcake_key* parent; /* the root */
  int32_t policy;
  int32_t slice_chunks_max; /* that the caller computes at once; default: 4 */
} kvcake_request;

/* Begins to load, from the back, what the planner wants loaded. Sleeps for nothing. */
KVCAKE_API int kvcake_begin(kvcake_cache cache, const kvcake_request* request,
                            kvcake_restoration* restoration);
/* Ends it, complete or not: loads that nobody else wants are cancelled. Chunks that were acquired
 * stay until they are released. */
KVCAKE_API int kvcake_end(kvcake_restoration restoration);

typedef struct kvcake_progress_info {
  size_t struct_size;
  int32_t chunks;        /* of the request */
  int32_t front;         /* the first that is neither here nor computed */
  int32_t back;          /* all from here on are here or computed; chunks if not even the last is */
  int32_t claimed_first; /* of the slice that is claimed */
  int32_t claimed_count; /* 0: none */
  int32_t computed;      /* chunks, as of kvcake_computed */
  int32_t loaded;
  int32_t reused;     /* were in memory, or loaded for another restoration */
  double predicted_s; /* from the beginning until all is here, as first planned; 0: unknown */
} kvcake_progress_info;
KVCAKE_API int kvcake_progress(kvcake_restoration restoration, kvcake_progress_info* progress);

typedef enum kvcake_turn_kind {
  KVCAKE_TURN_SLICE = 0, /* compute [first, first + count), then call kvcake_computed */
  KVCAKE_TURN_WAIT = 1,  /* for kvcake_wait or wait_s, then ask again */
  KVCAKE_TURN_DONE = 2   /* every chunk is here or computed */
} kvcake_turn_kind;
typedef struct kvcake_turn {
  size_t struct_size;
  int32_t kind; /* kvcake_turn_kind */
  int32_t first;
  int32_t count;
  double wait_s;
} kvcake_turn;

/* What the planner would have computed next, of at most chunks_max chunks, given that the caller
 * gives this prompt `share` of its compute time (0 < share <= 1). A slice is claimed: what was
 * loading of it is not waited for any more, and to the plans of other restorations it is being
 * computed until kvcake_computed says what became of it. */
KVCAKE_API int kvcake_claim_front(kvcake_restoration restoration, int32_t chunks_max, double share,
                                  kvcake_turn* turn);
/* Claims up to so many chunks from the front whatever the planner thinks, as the caller computes
 * them anyway. KVCAKE_BUSY while a slice is claimed. */
KVCAKE_API int kvcake_claim(kvcake_restoration restoration, int32_t chunks, kvcake_turn* turn);
/* `count` chunks of the claimed slice were computed, in `seconds` (0: do not learn from it), and
 * lie where the caller keeps them; the rest of the slice, if any, is given back. While nothing was
 * learnt of what computing costs, slices are of one chunk. */
KVCAKE_API int kvcake_computed(kvcake_restoration restoration, int32_t count, double seconds);

/* ---- what was loaded */

typedef struct kvcake_slabs {
  size_t struct_size;
  kvcake_chunk chunk; /* to release it by */
  const void* data;   /* layer i is slab_bytes from data + i * stride on; verified; read only */
  uint64_t stride;
} kvcake_slabs;
/* Holds a chunk that was loaded or is in memory. KVCAKE_NOT_FOUND where it is not, or was computed
 * by the caller; also where there is no such restoration any more, as kvcake_progress tells. */
KVCAKE_API int kvcake_acquire(kvcake_restoration restoration, int32_t chunk, kvcake_slabs* slabs);
/* Nobody reads at its address any more. Also after kvcake_end. */
KVCAKE_API int kvcake_release(kvcake_chunk chunk);

/* ---- what is to be kept */

typedef struct kvcake_write {
  size_t struct_size;
  kvcake_key key;
  kvcake_key parent; /* the key before it in its restorations: the chunk's before it, or the root */
  int32_t position;  /* in its prompt, in chunks: of those that wait the first go first where there
                        is no room for all */
  const void* data;  /* as of kvcake_slabs; read before the call returns */
  uint64_t stride;   /* at least slab_bytes, or 0: slab_bytes */
} kvcake_write;
/* Copies a chunk and queues it for the first store; what a store holds is not written again.
 * KVCAKE_FULL when there is no memory for it: it is counted in writes_dropped, and nothing is kept.
 */
KVCAKE_API int kvcake_put(kvcake_cache cache, const kvcake_write* write);
/* One of several chunks that lie in pieces. */
typedef struct kvcake_async_write {
  size_t struct_size;
  kvcake_key key;
  kvcake_key parent; /* as of kvcake_write, and the next */
  int32_t position;
  const void* const* parts; /* layers * parts_per_slab addresses of equally many bytes each, which
                               one after the other are the slabs; the array is read before the call
                               returns, what they point to until kvcake_put_wait does */
  size_t parts_per_slab;    /* 1 or more, by which slab_bytes can be divided */
} kvcake_async_write;
/* As kvcake_put of each that no store holds, by a thread of the library or by kvcake_put_wait:
 * returns at once. What is in memory is not copied again. What there is no memory for is counted.
 * Nothing is put where one of them is refused. */
KVCAKE_API int kvcake_put_async(kvcake_cache cache, const kvcake_async_write* writes, size_t count);
/* Puts what the thread has not begun to, then sleeps until nothing of what kvcake_put_async was
 * given is read any more. How many chunks have been kept since the last call, and how many there
 * was no memory for; each may be NULL. */
KVCAKE_API int kvcake_put_wait(kvcake_cache cache, uint64_t* kept, uint64_t* dropped);
/* Sleeps until all that was put, kvcake_put_async included, is written or has failed.
 * KVCAKE_TIMEOUT when nothing has been written for a minute. */
KVCAKE_API int kvcake_flush(kvcake_cache cache);

/* What `tokens` after `prefix_tokens` of any prompt took the caller, alone: the planner learns from
 * it what computing costs, as it does from kvcake_computed. Tell of each once. */
KVCAKE_API int kvcake_learn(kvcake_cache cache, int32_t prefix_tokens, int32_t tokens,
                            double seconds);

/* ---- events and numbers */

/* Sleeps until a chunk came or a restoration should be asked for its turn again, or for timeout_s;
 * not at all where that has happened since the thread waited for this cache last. KVCAKE_OK in all
 * cases. */
KVCAKE_API int kvcake_wait(kvcake_cache cache, double timeout_s);

typedef struct kvcake_stats_info {
  size_t struct_size;
  uint64_t memory_chunks;     /* that memory_bytes has room for */
  uint64_t memory_referenced; /* by restorations, acquired, or about to be written */
  uint64_t memory_cached;     /* that nobody holds, and can still be found */
  uint64_t restorations;      /* open */
  uint64_t acquired;          /* chunks */
  uint64_t reads;             /* of all stores, verified */
  uint64_t read_bytes;
  uint64_t reads_failed; /* errors and damaged chunks */
  uint64_t reads_in_flight;
  uint64_t stored_chunks; /* of all stores, as far as known */
  uint64_t writes_queued; /* or under way */
  uint64_t writes_written;
  uint64_t writes_failed;
  uint64_t writes_dropped; /* for want of memory, or room in the queue */
} kvcake_stats_info;
KVCAKE_API int kvcake_stats(kvcake_cache cache, kvcake_stats_info* stats);

#ifdef __cplusplus
}
#endif

#endif /* KVCAKE_H */
