// The operations on Python tensors: views, checks, threads. What does not fit throws `Mismatch`, a page id or length
// out of range `ArgumentError`, before anything is written.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "kernels.h"

namespace wavecore {

class Operations {
 public:
  explicit Operations(const std::string& instruction_set);

  const char* instruction_set() const { return kernels_->name; }

  void layer_norm_modulate(pybind11::handle x, pybind11::handle shift, pybind11::handle scale, pybind11::handle out,
                           double eps, int threads) const;
  void gate_residual(pybind11::handle x, pybind11::handle y, pybind11::handle gate, pybind11::handle out,
                     int threads) const;
  void rms_norm(pybind11::handle x, pybind11::handle weight, pybind11::handle out, double eps, int threads) const;
  void gelu(pybind11::handle x, pybind11::handle out, int threads) const;
  void renoise_step(pybind11::handle x, pybind11::handle velocity, pybind11::handle noise, pybind11::handle sigma,
                    pybind11::handle next_sigma, pybind11::handle x0, pybind11::handle noised, int threads) const;
  void qkv_page_write(pybind11::handle q, pybind11::handle k, pybind11::handle v, pybind11::handle q_weight,
                      pybind11::handle k_weight, pybind11::handle rope, pybind11::handle k_pages,
                      pybind11::handle v_pages, pybind11::handle page_ids, pybind11::handle unroped_pages,
                      pybind11::handle unroped_ids, pybind11::handle peer_k_pages, pybind11::handle peer_v_pages,
                      pybind11::handle peer_ids, pybind11::handle q_out, double eps, int threads) const;
  void rope_shift(pybind11::handle unroped_pages, pybind11::handle source_ids, pybind11::handle k_pages,
                  pybind11::handle target_ids, pybind11::handle rope, int threads) const;
  void paged_attention(pybind11::handle q, pybind11::handle k_pages, pybind11::handle v_pages,
                       pybind11::handle page_table, pybind11::handle page_lengths, pybind11::handle out,
                       pybind11::handle lse, double scale, int threads) const;
  void linear(pybind11::handle x, pybind11::handle weight, pybind11::handle bias, pybind11::handle residual,
              pybind11::handle gate, pybind11::handle out, bool gelu, int threads) const;
  void quantize_tokens(pybind11::handle x, pybind11::handle data, pybind11::handle scale, bool gelu,
                       int threads) const;
  void layer_norm_modulate_quantize(pybind11::handle x, pybind11::handle shift, pybind11::handle scale,
                                    pybind11::handle data, pybind11::handle token_scale, double eps,
                                    int threads) const;
  void int8_linear(pybind11::handle tokens, pybind11::handle token_scale, pybind11::handle weight,
                   pybind11::handle channel_scale, pybind11::handle bias, pybind11::handle residual,
                   pybind11::handle gate, pybind11::handle out, int threads) const;
  void quantize_key_pages(pybind11::handle k_pages, pybind11::handle page_ids, pybind11::handle page_lengths,
                          pybind11::handle data, pybind11::handle scale, pybind11::handle mean, int threads) const;
  void paged_attention_int8(pybind11::handle q, pybind11::handle k_data, pybind11::handle k_scale,
                            pybind11::handle k_mean, pybind11::handle v_pages, pybind11::handle page_table,
                            pybind11::handle page_lengths, pybind11::handle out, pybind11::handle lse, double scale,
                            int threads) const;

  // Norm, modulation and the projections to q, k and v: parts [4, s, t, D], the normed rows first.
  void block_projections(pybind11::handle x, pybind11::handle modulation, pybind11::sequence weights,
                         pybind11::handle parts, double eps, int threads) const;
  // What follows self-attention; `work` is memory for what lies between.
  void block_output(pybind11::handle attended, pybind11::handle x, pybind11::handle modulation,
                    pybind11::sequence weights, pybind11::handle keys, pybind11::handle values,
                    pybind11::handle work, pybind11::handle out, double eps, int threads) const;

 private:
  const Kernels* kernels_;
};

}  // namespace wavecore
