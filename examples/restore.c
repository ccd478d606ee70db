/* Keeps the KV cache of a prompt, and restores it as a new process would: from the front by
 * computing, from the back by loading, until both meet.
 *
 *   cc -std=c99 restore.c -lkvcake && ./a.out DIR
 *
 * What a model would compute is made up here: byte b of layer l of chunk c is c + l + b, and a
 * chunk takes 10 ms.
 */
#define _POSIX_C_SOURCE 199309L /* for clock_gettime and nanosleep */
#include <kvcake.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kLayers = 4, kChunkTokens = 16, kChunks = 24, kTokens = kChunks * kChunkTokens };
enum { kSlabBytes = 6000, kChunkBytes = kLayers * kSlabBytes };

static void check(int status, const char* what) {
  if (status == KVCAKE_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, kvcake_status_name(status), kvcake_last_error());
  exit(1);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void make_chunk(int chunk, unsigned char* slabs) {
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < kSlabBytes; ++i) {
      slabs[layer * kSlabBytes + i] = (unsigned char)(chunk + layer + i);
    }
  }
}

static void compute_chunk(int chunk, unsigned char* slabs) {
  const struct timespec takes = {0, 10 * 1000 * 1000};
  nanosleep(&takes, NULL);
  make_chunk(chunk, slabs);
}

static kvcake_cache open_cache(const char* dir) {
  kvcake_store store;
  kvcake_options options;
  kvcake_cache cache = 0;
  memset(&store, 0, sizeof(store));
  store.struct_size = sizeof(store);
  store.where = dir;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.name_space = "an example, made up, bytes";
  options.layers = kLayers;
  options.chunk_tokens = kChunkTokens;
  options.slab_bytes = kSlabBytes;
  options.stores = &store;
  options.store_count = 1;
  options.memory_bytes = 64u << 20;
  check(kvcake_open(&options, &cache), "kvcake_open");
  return cache;
}

/* The key before the prompt's first, then those of its chunks. */
static void prompt_keys(kvcake_cache cache, kvcake_key* keys) {
  int32_t tokens[kTokens];
  for (int i = 0; i < kTokens; ++i) tokens[i] = i % 1000;
  check(kvcake_root(cache, NULL, 0, &keys[0]), "kvcake_root");
  check(kvcake_keys(cache, &keys[0], tokens, kTokens, &keys[1], kChunks), "kvcake_keys");
}

static void keep(const char* dir) {
  static unsigned char slabs[kChunkBytes];
  kvcake_key keys[kChunks + 1];
  kvcake_cache cache = open_cache(dir);
  prompt_keys(cache, keys);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    kvcake_write write;
    make_chunk(chunk, slabs);
    memset(&write, 0, sizeof(write));
    write.struct_size = sizeof(write);
    write.parent = keys[chunk];
    write.key = keys[chunk + 1];
    write.position = chunk;
    write.data = slabs;
    check(kvcake_put(cache, &write), "kvcake_put");
  }
  check(kvcake_flush(cache), "kvcake_flush");
  check(kvcake_close(cache), "kvcake_close");
}

/* Copies chunks that were loaded to where the model reads them; returns how many were. */
static int copy_loaded(kvcake_restoration restoration, unsigned char* kv) {
  int copied = 0;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    kvcake_slabs slabs;
    int status;
    memset(&slabs, 0, sizeof(slabs));
    slabs.struct_size = sizeof(slabs);
    status = kvcake_acquire(restoration, chunk, &slabs);
    if (status == KVCAKE_NOT_FOUND) continue; /* it was computed */
    check(status, "kvcake_acquire");
    for (int layer = 0; layer < kLayers; ++layer) {
      memcpy(kv + chunk * kChunkBytes + layer * kSlabBytes,
             (const unsigned char*)slabs.data + (size_t)layer * slabs.stride, kSlabBytes);
    }
    check(kvcake_release(slabs.chunk), "kvcake_release");
    ++copied;
  }
  return copied;
}

static void restore(const char* dir) {
  static unsigned char kv[kChunks * kChunkBytes], expected[kChunkBytes];
  kvcake_key keys[kChunks + 1];
  kvcake_request request;
  kvcake_restoration restoration = 0;
  int computed = 0, loaded;
  kvcake_cache cache = open_cache(dir);
  prompt_keys(cache, keys);
  memset(&request, 0, sizeof(request));
  request.struct_size = sizeof(request);
  request.parent = &keys[0];
  request.keys = &keys[1];
  request.key_count = kChunks;
  check(kvcake_begin(cache, &request, &restoration), "kvcake_begin");
  for (;;) {
    kvcake_turn turn;
    double began;
    memset(&turn, 0, sizeof(turn));
    turn.struct_size = sizeof(turn);
    check(kvcake_claim_front(restoration, 4, 1.0, &turn), "kvcake_claim_front");
    if (turn.kind == KVCAKE_TURN_DONE) break;
    if (turn.kind == KVCAKE_TURN_WAIT) {
      check(kvcake_wait(cache, turn.wait_s), "kvcake_wait");
      continue;
    }
    began = now_s();
    for (int i = turn.first; i < turn.first + turn.count; ++i) {
      compute_chunk(i, kv + i * kChunkBytes);
    }
    check(kvcake_computed(restoration, turn.count, now_s() - began), "kvcake_computed");
    computed += turn.count;
  }
  loaded = copy_loaded(restoration, kv);
  check(kvcake_end(restoration), "kvcake_end");
  check(kvcake_close(cache), "kvcake_close");
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    make_chunk(chunk, expected);
    if (memcmp(kv + chunk * kChunkBytes, expected, kChunkBytes) != 0) {
      fprintf(stderr, "chunk %d was not restored\n", chunk);
      exit(1);
    }
  }
  printf("%d chunks: %d computed, %d loaded\n", kChunks, computed, loaded);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: restore DIR\n");
    return 2;
  }
  keep(argv[1]);
  restore(argv[1]);
  return 0;
}
