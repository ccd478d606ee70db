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

template <bool kInt8, bool kAdd, bool kAhead, int... kRows>
constexpr auto MakeTiles(std::integer_sequence<int, kRows...>) {
  if constexpr (kInt8) {
    return std::array{&Int8Tile<kRows + 1, kAdd, kAhead>...};
  } else {
    return std::array{&Tile<kRows + 1, kAdd, kAhead>...};
  }
}
// kTiles[r - 1] multiplies r rows by a panel, adds to c or overwrites it, and may fetch what is
// ahead.
template <bool kInt8, bool kAdd, bool kAhead>
constexpr auto kTiles =
    MakeTiles<kInt8, kAdd, kAhead>(std::make_integer_sequence<int, kTileRows>());

struct Products {
  // c[rows][kPanel] (+)= a[rows] x so many steps of one panel, tile by tile; a is of Element or
  // Quantized. The last tile fetches what will be read next, as many bytes from `ahead` on as
  // `steps` of a panel take in memory.
  template <typename A, typename B, typename C>
  KVCAKE_ISA static void MultiplyRows(const A* a, int64_t a_stride, int64_t rows, const B* b,
                                      int64_t steps, C* c, int64_t c_stride, bool add,
                                      const std::byte* ahead = nullptr) {
    constexpr bool kInt8 = std::is_same_v<A, Quantized>;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const int64_t n = rows - row < kTileRows ? rows - row : kTileRows;
      const bool fetch = ahead != nullptr && row + n == rows;
      const auto& tiles = fetch ? add ? kTiles<kInt8, true, true> : kTiles<kInt8, false, true>
                          : add ? kTiles<kInt8, true, false>
                                : kTiles<kInt8, false, false>;
      tiles[n - 1](a + row * a_stride, a_stride, b, steps, c + row * c_stride, c_stride, ahead);
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
