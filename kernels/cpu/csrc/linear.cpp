// Linear layers in bf16.

#include "linear.h"

namespace {

using namespace baton;

struct Bf16Weights {
  using Rows = bf16*;
  static constexpr double kPackingNs = 0.1;

  const bf16* panels;
  int64_t in_size, padded_size;

  Rows reserve(int64_t num_rows) const {
    thread_local Scratch<bf16> scratch;
    return scratch.get(num_rows * padded_size);
  }
  Rows from_row(Rows packed, int64_t first) const { return packed + first * padded_size; }
  void pack(const bf16* x, int64_t x_stride, int64_t rows, int64_t block, Rows to) const {
    pack_row_block(x, x_stride, rows, block, in_size, padded_size, to);
  }
  void product(Rows rows, int64_t num_rows, int64_t panel, int num_panels, float* sums) const {
    const int64_t stride = padded_size * kPanel;
    rows_product(rows, num_rows, panels + panel * stride, stride, num_panels, padded_size,
                 Bf16Sums{sums, 2 * kPanel, false});
  }
  Floats scaled(Floats sums, int64_t) const { return sums; }
};

}  // namespace

extern "C" {

// Elements of a packed weight of [out_size, in_size].
int64_t baton_packed_size(int64_t in_size, int64_t out_size) {
  return round_up(in_size, kSizeMultiple) * round_up(out_size, kPanel);
}

// weight [out_size, in_size], contiguous, to every `panel_step`-th panel of `packed` from `first_panel` on.
void baton_pack_weight(const bf16* weight, int64_t in_size, int64_t out_size, int64_t first_panel, int64_t panel_step,
                       bf16* packed, int threads) {
  const int64_t padded_size = round_up(in_size, kSizeMultiple);
  parallel_for((out_size + kPanel - 1) / kPanel, threads, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int columns = static_cast<int>(std::min<int64_t>(kPanel, out_size - panel * kPanel));
      pack_panel(weight + panel * kPanel * in_size, in_size, columns, in_size, padded_size,
                 packed + (first_panel + panel * panel_step) * kPanel * padded_size);
    }
  });
}

// out [rows, out_size] = x [rows, in_size] times the packed weight, plus bias; see Layer.
void baton_linear(const bf16* x, int64_t x_stride, const bf16* panels, const bf16* bias, bf16* out, int64_t out_stride,
                  int64_t rows, int64_t in_size, int64_t out_size, int silu_and_mul, int threads) {
  const Layer layer{x, x_stride, bias, out, out_stride, rows, in_size, out_size, silu_and_mul != 0};
  run_layer(layer, Bf16Weights{panels, in_size, round_up(in_size, kSizeMultiple)}, threads);
}

}  // extern "C"
