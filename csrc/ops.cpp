#include "ops.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "arguments.h"
#include "cpu_features.h"
#include "parallel.h"
#include "tensor.h"

namespace wavecore {
namespace {

namespace py = pybind11;

const Kernels& kernels_named(const std::string& name) {
  std::vector<std::string> supported = supported_instruction_sets();
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
    std::string list;
    for (const std::string& known : supported) list += (list.empty() ? "" : ", ") + known;
    throw ArgumentError("WAVECORE_CPU", "one of " + list + " on this processor", "'" + name + "'");
  }
#if defined(WAVECORE_HAVE_AMX)
  if (name == "amx") return amx_kernels();
#endif
#if defined(WAVECORE_HAVE_X86)
  if (name == "avx512_vnni") return avx512_vnni_kernels();
  if (name == "avx512") return avx512_kernels();
  if (name == "avx2") return avx2_kernels();
#endif
  return portable_kernels();
}

}  // namespace

Operations::Operations(const std::string& instruction_set) : kernels_(&kernels_named(instruction_set)) {}

void Operations::layer_norm_modulate(py::handle x_, py::handle shift_, py::handle scale_, py::handle out_, double eps,
                                     int threads) const {
  Tensor x = Tensor::input(x_, 3), shift = Tensor::input(shift_, 3);
  Tensor scale = Tensor::input(scale_, 3), out = Tensor::output(out_, 3);
  require(x.is_floating() && modulates(shift, x) && scale.dtype() == shift.dtype() &&
          scale.is({x.size(0), shift.size(1), x.size(2)}));
  if (x.elements() == 0) return;
  LayerNormModulateArgs args{x.data(),          x.stride(0), x.stride(1), modulation(shift),
                             modulation(scale), out.data(),  x.size(1),   x.size(1) / shift.size(1),
                             x.size(2),         float(eps),  1.0f,        x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0) * x.size(1), double(x.size(2)), threads,
               [&](int64_t begin, int64_t end) {
                 kernels_->layer_norm_modulate(args, begin, end, thread_scratch(3 * args.dim));
               });
}

void Operations::gate_residual(py::handle x_, py::handle y_, py::handle gate_, py::handle out_, int threads) const {
  Tensor x = Tensor::input(x_, 3), y = Tensor::input(y_, 3);
  Tensor gate = Tensor::input(gate_, 3), out = Tensor::output(out_, 3);
  require(x.is_floating() && is_like(y, x, {x.size(0), x.size(1), x.size(2)}) && modulates(gate, x));
  if (x.elements() == 0) return;
  GateResidualArgs args{x.data(),         x.stride(0), x.stride(1), y.data(),
                        y.stride(0),      y.stride(1), modulation(gate),
                        out.data(),       x.size(1),   x.size(1) / gate.size(1),
                        x.size(2),        x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0) * x.size(1), double(x.size(2)), threads,
               [&](int64_t begin, int64_t end) { kernels_->gate_residual(args, begin, end); });
}

void Operations::rms_norm(py::handle x_, py::handle weight_, py::handle out_, double eps, int threads) const {
  Tensor x = Tensor::rows(x_), out = Tensor::rows(out_), weight = Tensor::float32(weight_, 1, x.dtype());
  require(x.is_floating() && weight.is({x.size(1)}));
  if (x.elements() == 0) return;
  RmsNormArgs args{x.data(), x.stride(0), weight.data<const float>(), out.data(), x.size(1), float(eps), x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0), double(x.size(1)), threads,
               [&](int64_t begin, int64_t end) { kernels_->rms_norm(args, begin, end); });
}

void Operations::gelu(py::handle x_, py::handle out_, int threads) const {
  Tensor x = Tensor::rows(x_), out = Tensor::rows(out_);
  require(x.is_floating());
  if (x.elements() == 0) return;
  GeluArgs args{x.data(), x.stride(0), out.data(), x.size(1), x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0), 4.0 * double(x.size(1)), threads,
               [&](int64_t begin, int64_t end) { kernels_->gelu(args, begin, end); });
}

void Operations::renoise_step(py::handle x_, py::handle velocity_, py::handle noise_, py::handle sigma_,
                              py::handle next_sigma_, py::handle x0_, py::handle noised_, int threads) const {
  Tensor x = Tensor::contiguous(x_, 5), velocity = Tensor::contiguous(velocity_, 5);
  Tensor noise = Tensor::contiguous(noise_, 5);
  Tensor sigma = Tensor::float32(sigma_, 2, DType::float32), next = Tensor::float32(next_sigma_, 2, DType::float32);
  Tensor x0 = Tensor::output(x0_, 5), noised = Tensor::output(noised_, 5);
  int64_t slots = x.size(0), channels = x.size(1), frames = x.size(2);
  auto sizes = {slots, channels, frames, x.size(3), x.size(4)};
  require(x.is_floating() && is_like(velocity, x, sizes) && is_like(noise, x, sizes));
  require(sigma.is({slots, frames}) && next.is({slots, frames}));
  if (x.elements() == 0) return;
  RenoiseStepArgs args{x.data(),  velocity.data(), noise.data(), sigma.data<const float>(), next.data<const float>(),
                       x0.data(), noised.data(),   channels,     frames,                    x.size(3) * x.size(4),
                       x.dtype()};
  py::gil_scoped_release release;
  parallel_for(slots * channels * frames, 2.0 * double(args.plane), threads,
               [&](int64_t begin, int64_t end) { kernels_->renoise_step(args, begin, end); });
}

void Operations::qkv_page_write(py::handle q_, py::handle k_, py::handle v_, py::handle q_weight_,
                                py::handle k_weight_, py::handle rope_, py::handle k_pages_, py::handle v_pages_,
                                py::handle page_ids_, py::handle unroped_pages_, py::handle unroped_ids_,
                                py::handle peer_k_pages_, py::handle peer_v_pages_, py::handle peer_ids_,
                                py::handle q_out_, double eps, int threads) const {
  Tensor q = Tensor::input(q_, 3), k = Tensor::input(k_, 3), v = Tensor::input(v_, 3);
  Tensor q_weight = Tensor::float32(q_weight_, 1, q.dtype()), k_weight = Tensor::float32(k_weight_, 1, q.dtype());
  Tensor rope = Tensor::contiguous(rope_, 4);
  Tensor k_pages = Tensor::output(k_pages_, 4), v_pages = Tensor::output(v_pages_, 4);
  Tensor page_ids = Tensor::contiguous(page_ids_, 2);
  Tensor q_out = Tensor::output(q_out_, 3);
  int64_t slots = q.size(0), tokens = q.size(1), dim = q.size(2);
  int64_t page_tokens = k_pages.size(1), heads = k_pages.size(2), head_dim = k_pages.size(3);
  require(q.is_floating() && is_like(k, q, {slots, tokens, dim}) && is_like(v, q, {slots, tokens, dim}));
  require(q_weight.is({dim}) && k_weight.is({dim}) && heads * head_dim == dim && head_dim % 2 == 0);
  require(rope.dtype() == DType::float32 && rope.is({slots, tokens, head_dim / 2, 2}) && page_tokens > 0);
  require(is_like(k_pages, q, {Tensor::kAny, page_tokens, heads, head_dim}));
  require(is_like(v_pages, q, {k_pages.size(0), page_tokens, heads, head_dim}));
  int64_t pages_per_slot = (tokens + page_tokens - 1) / page_tokens;
  require(is_ids(page_ids, {slots, pages_per_slot}));
  check_page_ids("page_ids", page_ids, k_pages.size(0));
  Pages unroped{};
  const int32_t* unroped_ids = nullptr;
  std::optional<Tensor> unroped_table;
  require(unroped_pages_.is_none() == unroped_ids_.is_none());
  if (!unroped_pages_.is_none()) {
    Tensor unroped_pages = Tensor::output(unroped_pages_, 4);
    unroped_table = Tensor::contiguous(unroped_ids_, 2);
    require(is_like(unroped_pages, q, {Tensor::kAny, page_tokens, heads, head_dim}));
    require(is_ids(*unroped_table, {slots, pages_per_slot}));
    check_page_ids("unroped_ids", *unroped_table, unroped_pages.size(0));
    unroped = pages(unroped_pages);
    unroped_ids = unroped_table->data<const int32_t>();
  }
  Pages peer_keys{}, peer_values{};
  const int32_t* peer_ids = nullptr;
  std::optional<Tensor> peer_table;
  require(peer_k_pages_.is_none() == peer_ids_.is_none() && peer_v_pages_.is_none() == peer_ids_.is_none());
  if (!peer_ids_.is_none()) {
    Tensor peer_k_pages = Tensor::output(peer_k_pages_, 4), peer_v_pages = Tensor::output(peer_v_pages_, 4);
    peer_table = Tensor::contiguous(peer_ids_, 2);
    require(is_like(peer_k_pages, q, {Tensor::kAny, page_tokens, heads, head_dim}));
    require(is_like(peer_v_pages, q, {peer_k_pages.size(0), page_tokens, heads, head_dim}));
    require(is_ids(*peer_table, {slots, pages_per_slot}));
    check_page_ids("peer_ids", *peer_table, peer_k_pages.size(0));
    peer_keys = pages(peer_k_pages);
    peer_values = pages(peer_v_pages);
    peer_ids = peer_table->data<const int32_t>();
  }
  QkvPageWriteArgs args{rows(q),
                        rows(k),
                        rows(v),
                        q_weight.data<const float>(),
                        k_weight.data<const float>(),
                        rope.data<const float>(),
                        tokens * head_dim,
                        head_dim,
                        pages(k_pages),
                        pages(v_pages),
                        unroped,
                        peer_keys,
                        peer_values,
                        page_ids.data<const int32_t>(),
                        unroped_ids,
                        peer_ids,
                        q_out.data(),
                        tokens,
                        page_tokens,
                        pages_per_slot,
                        heads,
                        head_dim,
                        float(eps),
                        q.dtype()};
  py::gil_scoped_release release;
  parallel_for(slots * pages_per_slot * page_tokens, 3.0 * double(dim), threads,
               [&](int64_t begin, int64_t end) { kernels_->qkv_page_write(args, begin, end); });
}

void Operations::rope_shift(py::handle unroped_pages_, py::handle source_ids_, py::handle k_pages_,
                            py::handle target_ids_, py::handle rope_, int threads) const {
  Tensor source = Tensor::input(unroped_pages_, 4);
  Tensor target = Tensor::output(k_pages_, 4), rope = Tensor::contiguous(rope_, 4);
  Tensor source_ids = Tensor::contiguous(source_ids_, 1);
  Tensor target_ids = Tensor::contiguous(target_ids_, 1);
  int64_t page_tokens = target.size(1), heads = target.size(2), head_dim = target.size(3);
  require(target.is_floating() && is_like(source, target, {Tensor::kAny, page_tokens, heads, head_dim}));
  require(is_ids(source_ids, {Tensor::kAny}) && is_ids(target_ids, {source_ids.size(0)}) && head_dim % 2 == 0);
  require(rope.dtype() == DType::float32 && rope.is({source_ids.size(0), page_tokens, head_dim / 2, 2}));
  check_page_ids("target_ids", target_ids, target.size(0));
  for (int64_t i = 0; i < target_ids.size(0); ++i) {
    int32_t id = source_ids.data<const int32_t>()[i];
    if (target_ids.data<const int32_t>()[i] >= 0 && (id < 0 || id >= source.size(0)))
      throw ArgumentError("source_ids", range(0, source.size(0), "page ids") + " where the target is not -1",
                          std::to_string(id));
  }
  RopeShiftArgs args{pages(source),
                     pages(target),
                     source_ids.data<const int32_t>(),
                     target_ids.data<const int32_t>(),
                     rope.data<const float>(),
                     page_tokens * head_dim,
                     head_dim,
                     page_tokens,
                     heads,
                     head_dim,
                     target.dtype()};
  py::gil_scoped_release release;
  parallel_for(target_ids.size(0) * page_tokens, double(heads * head_dim), threads,
               [&](int64_t begin, int64_t end) { kernels_->rope_shift(args, begin, end); });
}

void Operations::paged_attention(py::handle q_, py::handle k_pages_, py::handle v_pages_, py::handle page_table_,
                                 py::handle page_lengths_, py::handle out_, py::handle lse_, double scale,
                                 int threads) const {
  Tensor q = Tensor::input(q_, 4);
  Tensor k_pages = Tensor::input(k_pages_, 4), v_pages = Tensor::input(v_pages_, 4);
  Tensor table = Tensor::contiguous(page_table_, 2);
  Tensor lengths = Tensor::contiguous(page_lengths_, 2);
  Tensor out = Tensor::output(out_, 4);
  int64_t slots = q.size(0), queries = q.size(1), heads = q.size(2), head_dim = q.size(3);
  require(q.is_floating() && is_like(k_pages, q, {Tensor::kAny, Tensor::kAny, heads, head_dim}));
  require(is_like(v_pages, q, {k_pages.size(0), k_pages.size(1), heads, head_dim}) && k_pages.size(1) > 0);
  require(is_ids(table, {slots, Tensor::kAny}) && is_ids(lengths, {slots, table.size(1)}));
  int64_t keys = check_context(table, lengths, k_pages.size(0), k_pages.size(1));
  float* lse = lse_.is_none() ? nullptr : Tensor::output(lse_, 3).data<float>();
  if (q.elements() == 0) return;
  PagedAttentionArgs args{q.data(),
                          q.stride(0),
                          q.stride(1),
                          q.stride(2),
                          pages(k_pages),
                          pages(v_pages),
                          table.data<const int32_t>(),
                          lengths.data<const int32_t>(),
                          out.data(),
                          lse,
                          queries,
                          0,
                          table.size(1),
                          heads,
                          head_dim,
                          float(scale),
                          q.dtype()};
  py::gil_scoped_release release;
  run_attention(*kernels_, args, slots, keys, threads);
}

}  // namespace wavecore
