// Linear layers in int8: half the bytes of bf16 to read, and twice the products an instruction.
//
// Weights have a scale for each output channel; rows are quantized as they come, in groups with a scale each, so that
// an outlier costs only its own group precision. (Per-channel weights and per-token rows: Xiao et al. 2023,
// arXiv:2211.10438; groups: Yao et al. 2022, arXiv:2206.01861.) Weights are stored 128 too large, as unsigned bytes,
// because the processors multiply unsigned by signed ones.

#include "linear.h"

namespace {

using namespace baton;

constexpr int kBytesMultiple = 2 * kSizeMultiple;  // sizes are padded to this: a bf16 takes the place of two int8
constexpr float kLargest = 127.0f;

struct Quantized {
  float scale;
  int32_t sum;  // of the whole numbers
};

// The largest absolute value; NaN if there is one that is not finite.
float largest_of(const bf16* from, int64_t count) {
  Floats largest = zeros(), poison = zeros();
  for (int64_t i = 0; i < count; i += kFloats) {
    const Floats x = load_bf16(from + i, count - i);
    largest = max(largest, max(x, zeros() - x));
    poison = fma(x, zeros(), poison);
  }
  return max_of(largest) + sum(poison);
}

// Elements as whole numbers, from -127 to 127, times a scale. They fill up the last vector of `to` with zeros.
Quantized quantize(const bf16* from, int64_t count, float largest, int8_t* to) {
  const Floats factor = set(largest > 0.0f ? kLargest / largest : 0.0f);
  Ints total = set_ints(0);
  for (int64_t i = 0; i < count; i += kFloats) {
    const Floats x = load_bf16(from + i, count - i) * factor;
    const Ints whole = to_ints(min(max(x, set(-kLargest)), set(kLargest)));  // in this order a NaN becomes finite
    total += whole;
    store_bytes(to + i, whole);
  }
  return {largest / kLargest, sum_of_ints(total)};
}

struct Int8Rows {
  bf16* packed;
  float* scales;         // [segment][groups][its rows, padded]
  int32_t* corrections;  // likewise
};

struct Int8Weights {
  using Rows = Int8Rows;
  static constexpr double kPackingNs = 0.15;

  const bf16* panels;
  const float* scales;  // [panels][16]
  int64_t in_size, padded_bytes;

  int64_t groups() const { return (padded_bytes + kGroup - 1) / kGroup; }
  Rows reserve(int64_t num_rows) const {
    thread_local Scratch<bf16> packed;
    thread_local Scratch<float> row_scales;
    thread_local Scratch<int32_t> corrections;
    const int64_t num_groups = num_rows * groups();
    return {packed.get(num_rows * padded_bytes / 2), row_scales.get(num_groups), corrections.get(num_groups)};
  }
  Rows from_row(const Rows& rows, int64_t first) const {
    return {rows.packed + first * padded_bytes / 2, rows.scales + first * groups(),
            rows.corrections + first * groups()};
  }
  void pack(const bf16* x, int64_t x_stride, int64_t rows, int64_t block, const Rows& to) const {
    thread_local Scratch<int8_t> scratch;
    int8_t* bytes = scratch.get(kBlockRows * padded_bytes);
    const RowBlocks blocks(rows);
    const int64_t first = blocks.first(block), padded_rows = RowBlocks::padded(rows);
    for (int64_t row = first; row < first + blocks.rows(block); ++row) {
      const bf16* from = x + row * x_stride;
      int8_t* row_bytes = bytes + (row - first) * padded_bytes;
      std::fill(row_bytes + in_size, row_bytes + padded_bytes, int8_t{0});
      for (int64_t start = 0, group = 0; start < in_size; start += kGroup, ++group) {
        const int64_t count = std::min<int64_t>(kGroup, in_size - start);
        const Quantized quantized = quantize(from + start, count, largest_of(from + start, count), row_bytes + start);
        to.scales[group * padded_rows + row] = quantized.scale;
        to.corrections[group * padded_rows + row] = -128 * quantized.sum;
      }
    }
    pack_block(reinterpret_cast<const bf16*>(bytes), padded_bytes / 2, blocks.rows(block), padded_bytes / 2,
               padded_bytes / 2, to.packed + first * padded_bytes / 2);
  }
  void product(const Rows& rows, int64_t num_rows, int64_t panel, int num_panels, float* sums) const {
    const int64_t stride = padded_bytes / 2 * kPanel;
    rows_product(rows.packed, num_rows, panels + panel * stride, stride, num_panels, padded_bytes / 2,
                 Int8Sums{sums, 2 * kPanel, rows.scales, rows.corrections, RowBlocks::padded(num_rows), false});
  }
  Floats scaled(Floats sums, int64_t column) const { return sums * load(scales + column); }
};

}  // namespace

extern "C" {

// Bytes of a packed weight of [out_size, in_size], without its scales.
int64_t baton_packed_int8_size(int64_t in_size, int64_t out_size) {
  return round_up(in_size, kBytesMultiple) * round_up(out_size, kPanel);
}

// weight [out_size, in_size], contiguous, quantized: to every `panel_step`-th panel of `packed`, and to its 16 scales,
// from `first_panel` on.
void baton_pack_int8_weight(const bf16* weight, int64_t in_size, int64_t out_size, int64_t first_panel,
                            int64_t panel_step, uint8_t* packed, float* scales, int threads) {
  const int64_t padded_bytes = round_up(in_size, kBytesMultiple);
  parallel_for((out_size + kPanel - 1) / kPanel, threads, [&](int64_t begin, int64_t end) {
    Scratch<int8_t> scratch;
    int8_t* bytes = scratch.get(kPanel * padded_bytes);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t to = first_panel + panel * panel_step, first = panel * kPanel;
      const int columns = static_cast<int>(std::min<int64_t>(kPanel, out_size - first));
      std::fill(bytes, bytes + kPanel * padded_bytes, int8_t{0});
      std::fill(scales + to * kPanel, scales + (to + 1) * kPanel, 0.0f);
      for (int column = 0; column < columns; ++column) {
        const bf16* from = weight + (first + column) * in_size;
        scales[to * kPanel + column] =
            quantize(from, in_size, largest_of(from, in_size), bytes + column * padded_bytes).scale;
      }
      for (int64_t i = 0; i < kPanel * padded_bytes; ++i) bytes[i] = static_cast<int8_t>(bytes[i] ^ -128);  // + 128
      pack_panel(reinterpret_cast<const bf16*>(bytes), padded_bytes / 2, kPanel, padded_bytes / 2, padded_bytes / 2,
                 reinterpret_cast<bf16*>(packed) + to * kPanel * padded_bytes / 2);
    }
  });
}

// baton_linear over a weight of baton_pack_int8_weight.
void baton_linear_int8(const bf16* x, int64_t x_stride, const uint8_t* panels, const float* scales, const bf16* bias,
                       bf16* out, int64_t out_stride, int64_t rows, int64_t in_size, int64_t out_size,
                       int silu_and_mul, int threads) {
  const Layer layer{x, x_stride, bias, out, out_stride, rows, in_size, out_size, silu_and_mul != 0};
  const Int8Weights weights{reinterpret_cast<const bf16*>(panels), scales, in_size, round_up(in_size, kBytesMultiple)};
  run_layer(layer, weights, threads);
}

}  // extern "C"
