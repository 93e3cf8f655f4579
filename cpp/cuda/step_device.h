#pragma once

#include <optional>

#include "step_pacer.h"

namespace tercet::cuda {

// Instantiates a captured graph for the stream it will run on; `graph` is not needed afterwards. Throws
// std::runtime_error.
std::shared_ptr<StepGraph> make_step_graph(CUgraph_st* graph, Stream stream);

// The current GPU, and the ring into which its steps write their records.
class CudaStepDevice : public StepDevice {
 public:
  // Throws std::invalid_argument if there are fewer than two records or no row, std::runtime_error if there is no
  // memory for them.
  CudaStepDevice(int num_records, int max_rows);
  ~CudaStepDevice() override;

  const RecordRing& ring() const { return ring_; }

  void begin_thread() override;
  void launch(const StepGraph& graph, Stream stream) override;
  const StepRecord* find(std::uint64_t sequence) override;
  bool is_idle() override;
  std::int64_t now_ns() override;
  void sleep(std::int64_t ns) override;

 private:
  void free();

  int device_ = 0;
  RecordRing ring_;
  std::optional<Stream> stream_;  // of the last launch
};

}  // namespace tercet::cuda
