// Attention of a mixed batch (PagedAttention, Kwon et al. 2023, arXiv:2309.06180): which thread computes which part.

#include "attention.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace {

using namespace baton;

constexpr int64_t kQueryRows = 128;  // rows of the products for a block of queries

// Queries of a row with several, or a chunk of the positions of a row with one; all KV heads of it.
struct Part {
  int64_t row, first, count;
  int64_t partial;  // which partial result a chunk gives, -1 for a block of queries
};

// A row with one query, and its partial results.
struct Single {
  int64_t row, first_partial, num_partials;
};

struct Work {
  std::vector<Part> parts;  // the longest first
  std::vector<Single> singles;
  int64_t num_partials = 0;
};

Work divide(const Attention& attention, int64_t rows) {
  Work work;
  const int64_t block = std::max<int64_t>(1, kQueryRows / attention.group());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t queries = attention.query_len(row), context = attention.context_lens[row];
    if (queries == 1) {
      const int64_t chunks = (context + kChunk - 1) / kChunk;
      work.singles.push_back({row, work.num_partials, chunks});
      for (int64_t first = 0; first < context; first += kChunk)
        work.parts.push_back({row, first, std::min(kChunk, context - first), work.num_partials++});
    } else {
      for (int64_t first = 0; first < queries; first += block)
        work.parts.push_back({row, first, std::min(block, queries - first), -1});
    }
  }
  const auto cost = [&](const Part& part) {
    const int64_t seen = attention.context_lens[part.row] - attention.query_len(part.row) + part.first + part.count;
    return part.partial < 0 ? part.count * seen : part.count;
  };
  std::stable_sort(work.parts.begin(), work.parts.end(),
                   [&](const Part& a, const Part& b) { return cost(a) > cost(b); });
  return work;
}

// The partial results of all chunks and KV heads, one after the other.
class Partials {
 public:
  Partials(float* memory, const Attention& attention)
      : memory_(memory), kv_heads_(attention.kv_heads), group_(attention.group()), head_dim_(attention.head_dim) {}
  static int64_t size(const Attention& attention) { return attention.heads * (attention.head_dim + 2); }
  // From one of the KV head's query heads on.
  Partial at(int64_t partial, int64_t kv_head, int64_t head = 0) const {
    float* start = memory_ + (partial * kv_heads_ + kv_head) * group_ * (head_dim_ + 2);
    return {start + head, start + group_ + head, start + 2 * group_ + head * head_dim_};
  }

 private:
  float* memory_;
  int64_t kv_heads_, group_, head_dim_;
};

void merge_chunks(const Attention& attention, const Single& single, int64_t kv_head, const Partials& partials) {
  bf16* out = attention.out_at(attention.query_starts[single.row], kv_head);
  for (int64_t head = 0; head < attention.group(); ++head) {
    const Partial whole = partials.at(single.first_partial, kv_head, head);
    for (int64_t chunk = 1; chunk < single.num_partials; ++chunk)
      merge(whole, partials.at(single.first_partial + chunk, kv_head, head), attention.head_dim);
    finish(whole, attention.head_dim, out + head * attention.head_dim);
  }
}

}  // namespace

extern "C" void baton_paged_attention(const bf16* query, int64_t query_stride, const bf16* key_cache,
                                      const bf16* value_cache, const int32_t* block_tables, int64_t table_stride,
                                      const int32_t* context_lens, const int32_t* query_starts, float scale, bf16* out,
                                      int64_t rows, int64_t heads, int64_t kv_heads, int64_t block_size,
                                      int64_t head_dim, int threads) {
  const Attention attention{query,        key_cache,    value_cache, block_tables, context_lens, query_starts, out,
                            query_stride, table_stride, heads,       kv_heads,     block_size,   head_dim,     scale};
  const Work work = divide(attention, rows);
  thread_local Scratch<float> scratch;
  const Partials partials(scratch.get(work.num_partials * Partials::size(attention)), attention);
  const int64_t num_parts = static_cast<int64_t>(work.parts.size());
  parallel_for(num_parts * kv_heads, threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const Part& part = work.parts[static_cast<size_t>(item / kv_heads)];
      const int64_t kv_head = item % kv_heads;
      if (part.partial < 0)
        attend_queries(attention, part.row, kv_head, part.first, part.count);
      else
        attend_chunk(attention, part.row, kv_head, part.first, part.count, item + 1 < end && kv_head + 1 < kv_heads,
                     partials.at(part.partial, kv_head));
    }
  });
  const int64_t num_singles = static_cast<int64_t>(work.singles.size());
  const double cost_ns = num_singles == 0 ? 0.0 : 0.1 * head_dim * heads / kv_heads * work.num_partials / num_singles;
  parallel_for_small(num_singles * kv_heads, cost_ns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      merge_chunks(attention, work.singles[static_cast<size_t>(item / kv_heads)], item % kv_heads, partials);
  });
}
