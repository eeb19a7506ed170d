// What a layer does between its matrix products and its attention: one pass over the activations each.

#include "activation.h"
#include "parallel.h"

namespace {

using namespace baton;

constexpr double kElementNs = 0.15;  // a thread's time for an element, about
constexpr int64_t kMaxHeadDim = 128;

// The factor 1 / rms(x) for `size` elements, given the sum of their squares.
float inverse_rms(float squares, int64_t size, float eps) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + eps);
}

// out = x * factor * weight; the normalized value is rounded before the weight is applied.
void scale_row(const bf16* x, const bf16* weight, float factor, bf16* out, int64_t size) {
  for (int64_t i = 0; i < size; i += kFloats) {
    const Floats normed = round_to_bf16(load_bf16(x + i, size - i) * set(factor));
    store_bf16(out + i, normed * load_bf16(weight + i, size - i), size - i);
  }
}

float sum_of_squares(const bf16* x, int64_t size) {
  Floats squares = zeros();
  for (int64_t i = 0; i < size; i += kFloats) {
    const Floats value = load_bf16(x + i, size - i);
    squares = fma(value, value, squares);
  }
  return sum(squares);
}

// Adds x to the residual and returns the sum of the squares of what is stored.
float add_to_residual(const bf16* x, bf16* residual, int64_t size) {
  Floats squares = zeros();
  for (int64_t i = 0; i < size; i += kFloats) {
    const Floats total = round_to_bf16(load_bf16(x + i, size - i) + load_bf16(residual + i, size - i));
    store_bf16(residual + i, total, size - i);
    squares = fma(total, total, squares);
  }
  return sum(squares);
}

// Rotates one head (Su et al. 2021, arXiv:2104.09864); cos_sin holds cosines, then sines.
void rotate(const bf16* head, const float* cos_sin, bf16* out, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += kFloats) {
    const Floats first = load_bf16(head + i), second = load_bf16(head + half + i);
    const Floats cosine = load(cos_sin + i), sine = load(cos_sin + half + i);
    store_bf16(out + i, first * cosine - second * sine);
    store_bf16(out + half + i, second * cosine + first * sine);
  }
}

// Normalizes one head, if there is a weight for that, and rotates it.
void norm_and_rotate(const bf16* head, const bf16* weight, const float* cos_sin, float eps, bf16* out,
                     int64_t head_dim) {
  if (weight == nullptr) return rotate(head, cos_sin, out, head_dim);
  bf16 normed[kMaxHeadDim];
  scale_row(head, weight, inverse_rms(sum_of_squares(head, head_dim), head_dim, eps), normed, head_dim);
  rotate(normed, cos_sin, out, head_dim);
}

}  // namespace

extern "C" {

void baton_rms_norm(const bf16* x, int64_t x_stride, const bf16* weight, float eps, bf16* out, int64_t out_stride,
                    int64_t rows, int64_t size, int threads) {
  parallel_for_small(rows, kElementNs * size, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bf16* from = x + row * x_stride;
      scale_row(from, weight, inverse_rms(sum_of_squares(from, size), size, eps), out + row * out_stride, size);
    }
  });
}

void baton_add_rms_norm(const bf16* x, int64_t x_stride, bf16* residual, int64_t residual_stride, const bf16* weight,
                        float eps, bf16* out, int64_t out_stride, int64_t rows, int64_t size, int threads) {
  parallel_for_small(rows, kElementNs * size, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bf16* stream = residual + row * residual_stride;
      const float squares = add_to_residual(x + row * x_stride, stream, size);
      scale_row(stream, weight, inverse_rms(squares, size, eps), out + row * out_stride, size);
    }
  });
}

void baton_silu_and_mul(const bf16* gate_up, int64_t stride, bf16* out, int64_t out_stride, int64_t rows, int64_t size,
                        int threads) {
  parallel_for_small(rows, 4 * kElementNs * size, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bf16 *gate = gate_up + row * stride, *up = gate + size;
      for (int64_t i = 0; i < size; i += kFloats)
        store_bf16(out + row * out_stride + i, silu_and_mul(load_bf16(gate + i, size - i), load_bf16(up + i, size - i)),
                   size - i);
    }
  });
}

void baton_embed_tokens(const int32_t* token_ids, const int32_t* token_lanes, const int32_t* last_tokens,
                        const bf16* table, int64_t table_stride, bf16* out, int64_t out_stride, int64_t tokens,
                        int64_t size, int threads) {
  parallel_for_small(tokens, kElementNs * size, threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t id = token_ids[token] < 0 ? last_tokens[token_lanes[token]] : token_ids[token];
      std::memcpy(out + token * out_stride, table + id * table_stride, static_cast<size_t>(size) * sizeof(bf16));
    }
  });
}

void baton_qk_norm_rope_store(const bf16* qkv, int64_t qkv_stride, const bf16* q_weight, const bf16* k_weight,
                              const float* cos_sin, const int32_t* positions, const int32_t* slot_mapping,
                              bf16* key_cache, bf16* value_cache, float eps, bf16* out, int64_t tokens, int64_t heads,
                              int64_t kv_heads, int64_t block_size, int64_t head_dim, int threads) {
  const size_t head_bytes = static_cast<size_t>(head_dim) * sizeof(bf16);
  const double cost_ns = 4 * kElementNs * static_cast<double>((heads + 2 * kv_heads) * head_dim);
  parallel_for_small(tokens, cost_ns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const bf16 *query = qkv + token * qkv_stride, *key = query + heads * head_dim, *value = key + kv_heads * head_dim;
      const float* angles = cos_sin + positions[token] * head_dim;
      for (int64_t head = 0; head < heads; ++head)
        norm_and_rotate(query + head * head_dim, q_weight, angles, eps, out + (token * heads + head) * head_dim,
                        head_dim);
      const int64_t slot = slot_mapping[token];
      if (slot < 0) continue;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t row = (slot / block_size * kv_heads + head) * block_size + slot % block_size;
        norm_and_rotate(key + head * head_dim, k_weight, angles, eps, key_cache + row * head_dim, head_dim);
        std::memcpy(value_cache + row * head_dim, value + head * head_dim, head_bytes);
      }
    }
  });
}

}  // extern "C"
