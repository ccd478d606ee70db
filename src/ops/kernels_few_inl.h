// Attention for the rows of one token, by kFew[rows], straight from the pages. Included once by
// each of kernels_*.cc but AMX's, after kernels_inl.h.

KVCAKE_ISA bool HasFew(const AttendArgs& t) { return t.group < static_cast<int64_t>(kFew.size()); }

KVCAKE_ISA void ScoreFew(const AttendArgs& t, const AttendScratch& s, Products&, int64_t block,
                         int64_t keys, const KvPlace& next) {
  const int64_t dim = t.head_dim;
  const uint16_t* const next_keys = next.kv.Keys(next.position);
  for (int64_t key = 0; key < keys; key += kLanes) {
    kFew[t.group].score(s.q, t.kv.Keys(block + key), next_keys + key * dim, dim, s.scores + key,
                        kBlock);
  }
}

KVCAKE_ISA void AddFew(const AttendArgs& t, const AttendScratch& s, Products&, int64_t block,
                       int64_t keys, const KvPlace& next, float* sums) {
  const int64_t dim = t.head_dim, stride = SumsStride(dim);
  const uint16_t* const next_values = next.kv.Values(next.position);
  const int64_t run = t.kv.pool->layout().chunk_tokens % kBlock == 0 ? kBlock : 16;
  for (int64_t key = 0; key < keys; key += run) {
    const int64_t n = keys - key < run ? keys - key : run;
    const uint16_t* values = t.kv.Values(block + key);
    for (int64_t d = 0; d < dim; d += kPanel) {
      kFew[t.group].add_values(s.p + key, kBlock, values + d, next_values + key * dim + d, n, dim,
                               dim - d, sums + d, stride);
    }
  }
}
