// Products by tiles whose sums stay in vector registers. Included once by each of kernels_*.cc but
// AMX's, before kernels_inl.h, after they have defined
//   kTileRows        rows that fill the registers with their sums of two vectors each
//   kAheadRows       from this many rows on, a tile has time to fetch the panel after its own
//   Int8Weight       of a panel as Int8Tile reads it
//   Tile<rows, add, ahead>(a, a_stride, b, steps, c, c_stride, ahead); Int8Tile, the same for
//                    quantised rows, c being integers

constexpr int64_t kPanel = 2 * kLanes;
constexpr int kManyPanels = 1;
constexpr int64_t kAttendRows = 96;
constexpr int64_t kRowsTogether = kAttendRows;

KVCAKE_INLINE V Exp(V x);
KVCAKE_INLINE V WeightOf(V x) { return Exp(x); }

using TileFunction = void (*)(const Element* a, int64_t a_stride, const Element* b, int64_t steps,
                              float* c, int64_t c_stride, const std::byte* ahead);

template <bool kAdd, bool kAhead, int... kRows>
constexpr std::array<TileFunction, sizeof...(kRows) + 1> MakeTiles(
    std::integer_sequence<int, kRows...>) {
  return {nullptr, &Tile<kRows + 1, kAdd, kAhead>...};
}
// kTiles[r] multiplies r rows by a panel, adds to c or overwrites it, and may fetch what is ahead.
template <bool kAdd, bool kAhead>
constexpr auto kTiles = MakeTiles<kAdd, kAhead>(std::make_integer_sequence<int, kTileRows>());

using Int8TileFunction = void (*)(const Quantized* a, int64_t a_stride, const Int8Weight* b,
                                  int64_t steps, int32_t* c, int64_t c_stride,
                                  const std::byte* ahead);

template <bool kAdd, bool kAhead, int... kRows>
constexpr std::array<Int8TileFunction, sizeof...(kRows) + 1> MakeInt8Tiles(
    std::integer_sequence<int, kRows...>) {
  return {nullptr, &Int8Tile<kRows + 1, kAdd, kAhead>...};
}
template <bool kAdd, bool kAhead>
constexpr auto kInt8Tiles =
    MakeInt8Tiles<kAdd, kAhead>(std::make_integer_sequence<int, kTileRows>());

struct Products {
  // c[rows][kPanel] (+)= a[rows][steps * kUnit] x one panel, tile by tile. The last tile fetches
  // what will be read next, as many bytes from `ahead` on as `steps` of a panel take in memory.
  KVCAKE_ISA static void MultiplyRows(const Element* a, int64_t a_stride, int64_t rows,
                                      const Element* b, int64_t steps, float* c, int64_t c_stride,
                                      bool add, const std::byte* ahead = nullptr) {
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int64_t n = rows - row < kTileRows ? rows - row : kTileRows;
      const bool fetch = ahead != nullptr && row + n == rows;
      const auto& tiles = fetch ? add ? kTiles<true, true> : kTiles<false, true>
                          : add ? kTiles<true, false>
                                : kTiles<false, false>;
      tiles[n](a + row * a_stride, a_stride, b, steps, c + row * c_stride, c_stride, ahead);
    }
  }

  // As MultiplyRows.
  KVCAKE_ISA static void MultiplyInt8Rows(const Quantized* a, int64_t a_stride, int64_t rows,
                                          const Int8Weight* b, int64_t steps, int32_t* c, bool add,
                                          const std::byte* ahead) {
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int64_t n = rows - row < kTileRows ? rows - row : kTileRows;
      const bool fetch = ahead != nullptr && row + n == rows;
      const auto& tiles = fetch ? add ? kInt8Tiles<true, true> : kInt8Tiles<false, true>
                          : add ? kInt8Tiles<true, false>
                                : kInt8Tiles<false, false>;
      tiles[n](a + row * a_stride, a_stride, b, steps, c + row * kPanel, kPanel, ahead);
    }
  }
};

// What lies behind the block of a panel that ends at `end`, if it is multiplied next and fetching
// it pays.
template <typename Args>
KVCAKE_ISA const std::byte* Ahead(const Args& m, int64_t end) {
  if (m.rows < kAheadRows || (end >= m.k && !m.more)) return nullptr;
  return reinterpret_cast<const std::byte*>(m.b + (end < m.k ? end : m.k) * kPanel);
}
