// The tile registers of AMX: 16 rows of 64 bytes each. BATON_EMULATE_AMX replaces them by plain C++ of the same
// meaning, so that code for AMX is tested on processors that have none.
#pragma once

#include "simd.h"

namespace baton {

#if defined(__AMX_BF16__) || defined(BATON_EMULATE_AMX)
#define BATON_TILES  // products are computed by tiles
#endif

constexpr int kTileRows = 16, kTileBytes = 64;

#if defined(BATON_EMULATE_AMX)

struct TileRegister {
  alignas(64) uint8_t rows[kTileRows][kTileBytes];
};
inline thread_local TileRegister tile_registers[8];

inline float flush_denormal(float x) { return x < 0x1p-126f && x > -0x1p-126f ? 0.0f * x : x; }

inline void emulate_load(int tile, const void* from, int64_t stride) {
  for (int row = 0; row < kTileRows; ++row)
    std::memcpy(tile_registers[tile].rows[row], static_cast<const char*>(from) + row * stride, kTileBytes);
}
inline void emulate_store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < kTileRows; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, tile_registers[tile].rows[row], kTileBytes);
}
inline void emulate_zero(int tile) { std::memset(&tile_registers[tile], 0, sizeof(TileRegister)); }

// TDPBF16PS as Intel's manual defines it: the first and the second elements of the pairs are summed apart, each step
// one fused multiply-add, then both sums are added, and that to the destination; denormals count as zero throughout.
inline void emulate_dot(int sums, int a, int b) {
  for (int row = 0; row < kTileRows; ++row) {
    float totals[2][kTileRows] = {};
    const bf16* left = reinterpret_cast<const bf16*>(tile_registers[a].rows[row]);
    for (int pair = 0; pair < kTileRows; ++pair) {
      const bf16* right = reinterpret_cast<const bf16*>(tile_registers[b].rows[pair]);
      for (int half = 0; half < 2; ++half) {
        const float factor = flush_denormal(to_float(left[2 * pair + half]));
        for (int column = 0; column < kTileRows; ++column) {
          const float other = flush_denormal(to_float(right[2 * column + half]));
          totals[half][column] = flush_denormal(__builtin_fmaf(factor, other, totals[half][column]));
        }
      }
    }
    float* to = reinterpret_cast<float*>(tile_registers[sums].rows[row]);
    for (int column = 0; column < kTileRows; ++column)
      to[column] = flush_denormal(to[column] + flush_denormal(totals[0][column] + totals[1][column]));
  }
}

// TDPBSUD: the rows' bytes are signed, the columns' unsigned, and int32 sums wrap around.
inline void emulate_dot_bytes(int sums, int a, int b) {
  for (int row = 0; row < kTileRows; ++row) {
    const int8_t* left = reinterpret_cast<const int8_t*>(tile_registers[a].rows[row]);
    int32_t* to = reinterpret_cast<int32_t*>(tile_registers[sums].rows[row]);
    for (int quad = 0; quad < kTileRows; ++quad)
      for (int column = 0; column < kTileRows; ++column)
        for (int i = 0; i < 4; ++i) to[column] += left[4 * quad + i] * tile_registers[b].rows[quad][4 * column + i];
  }
}

#define TILE_LOAD(tile, from, stride) baton::emulate_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) baton::emulate_store(tile, to, stride)
#define TILE_ZERO(tile) baton::emulate_zero(tile)
#define TILE_DOT(sums, a, b) baton::emulate_dot(sums, a, b)
#define TILE_DOT_BYTES(sums, a, b) baton::emulate_dot_bytes(sums, a, b)

struct TileScope {};

#elif defined(__AMX_BF16__)

// Macros, because the intrinsics put the number of the tile into the text of an assembler instruction.
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_DOT(sums, a, b) _tile_dpbf16ps(sums, a, b)
#define TILE_DOT_BYTES(sums, a, b) _tile_dpbsud(sums, a, b)

// While it lives all eight tiles of this thread are whole ones. It lives shortly: oneDNN sets the tiles too.
class TileScope {
 public:
  TileScope() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = kTileBytes;
      config.rows[tile] = kTileRows;
    }
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

#else

struct TileScope {};

#endif

}  // namespace baton
