#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <numeric>
#include <string_view>

#include "bind.h"
#include "tercet/blake2s.h"
#include "tercet/block_pool.h"
#include "tercet/block_table.h"

namespace py = pybind11;

namespace tercet {
namespace {

using IdArray = py::array_t<std::int32_t, py::array::c_style>;
using IdList = std::vector<std::int32_t>;

using Column = py::array_t<std::int64_t, py::array::c_style>;

// See worker/_core.pyi. One call a step: one a row costs more than what it does.
void place_rows(const std::vector<const BlockTable*>& tables, const Column& firsts, const Column& counts,
                Column positions, Column slots, IdArray block_tables) {
  const auto num_rows = static_cast<py::ssize_t>(tables.size());
  if (firsts.ndim() != 1 || counts.ndim() != 1 || firsts.size() != num_rows || counts.size() != num_rows ||
      block_tables.ndim() != 2 || block_tables.shape(0) != num_rows) {
    throw std::invalid_argument("place_rows needs a first, a count and a row of block_tables for each table");
  }
  if (positions.ndim() != 1 || slots.ndim() != 1 || positions.size() != slots.size()) {
    throw std::invalid_argument("place_rows needs positions and slots of one length");
  }
  const py::ssize_t width = block_tables.shape(1);
  py::ssize_t left = slots.size();
  std::int64_t* position = positions.mutable_data();
  std::int64_t* slot = slots.mutable_data();
  std::int32_t* row = block_tables.mutable_data();
  for (py::ssize_t i = 0; i < num_rows; ++i, row += width) {
    const std::int64_t first = firsts.data()[i], count = counts.data()[i];
    if (tables[i] == nullptr || tables[i]->num_blocks() > width || count > left) {
      throw std::invalid_argument("row " + std::to_string(i) + " does not fit into the arrays");
    }
    tables[i]->slots(first, count, slot);
    std::iota(position, position + count, first);
    std::copy(tables[i]->blocks().begin(), tables[i]->blocks().end(), row);
    slot += count;
    position += count;
    left -= count;
  }
  if (left != 0) throw std::invalid_argument("the counts do not add up to the length of slots");
}

py::array_t<std::uint64_t> array_of(const BlockPool::Keys& keys) {
  return py::array_t<std::uint64_t>(static_cast<py::ssize_t>(keys.size()), keys.data());
}

py::array_t<std::int64_t> slots(const BlockTable& table, int first, int count) {
  py::array_t<std::int64_t> out(std::max(count, 0));
  table.slots(first, count, out.mutable_data());
  return out;
}

py::bytes digest(const py::bytes& data, const py::bytes& person, int size) {
  const std::string_view message = data;
  const std::string_view use = person;
  if (use.size() != 8) throw std::invalid_argument("person must be 8 bytes");
  if (size < 1 || size > 32) throw std::invalid_argument("digest_size must be 1 to 32");
  std::uint8_t out[32];
  blake2s(message.data(), message.size(), use.data(), out, static_cast<std::size_t>(size));
  return py::bytes(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
}

const std::int32_t* ids_of(const IdArray& ids) {
  if (ids.ndim() != 1) throw std::invalid_argument("token_ids must have one dimension");
  return ids.data();
}

}  // namespace

void bind_blocks(py::module_& m) {
  py::register_exception<OutOfBlocks>(m, "OutOfBlocks", PyExc_RuntimeError);
  py::register_exception<PoolCorrupt>(m, "PoolCorrupt", PyExc_RuntimeError);

  py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
      .def(py::init<int, int, bool>(), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("enable_prefix_caching") = true)
      .def_property_readonly("block_size", &BlockPool::block_size)
      .def_property_readonly("num_total", &BlockPool::num_total)
      .def_property_readonly("num_free", &BlockPool::num_free)
      .def_property_readonly("num_cached", &BlockPool::num_cached)
      .def_property_readonly("num_used", &BlockPool::num_used)
      .def("hand_out_last", &BlockPool::hand_out_last, py::arg("blocks"))
      .def("take_events",
           [](BlockPool& pool) {
             const auto [removed, stored] = pool.take_events();
             return py::make_tuple(array_of(removed), array_of(stored));
           })
      .def("published_keys", [](const BlockPool& pool) { return array_of(pool.published_keys()); })
      .def("check", &BlockPool::check, py::call_guard<py::gil_scoped_release>());

  // An int32 array is read in place; any other sequence of ints is converted.
  py::class_<BlockTable>(m, "BlockTable")
      .def(py::init([](std::shared_ptr<BlockPool> pool, const py::bytes& salt) {
             const std::string_view bytes = salt;
             return std::make_unique<BlockTable>(std::move(pool), bytes.data(), bytes.size());
           }),
           py::arg("pool").none(false), py::arg("salt") = py::bytes())
      .def(
          "match_prefix",
          [](BlockTable& table, const IdArray& ids) {
            const std::int32_t* data = ids_of(ids);
            return table.match_prefix(data, static_cast<std::size_t>(ids.size()));
          },
          py::arg("token_ids").noconvert())
      .def(
          "match_prefix",
          [](BlockTable& table, const IdList& ids) { return table.match_prefix(ids.data(), ids.size()); },
          py::arg("token_ids"))
      .def("reserve", &BlockTable::reserve, py::arg("num_tokens"))
      .def(
          "commit",
          [](BlockTable& table, const IdArray& ids) {
            const std::int32_t* data = ids_of(ids);
            table.commit(data, static_cast<std::size_t>(ids.size()));
          },
          py::arg("token_ids").noconvert())
      .def(
          "commit", [](BlockTable& table, const IdList& ids) { table.commit(ids.data(), ids.size()); },
          py::arg("token_ids"))
      .def("fork", &BlockTable::fork)
      .def("release", &BlockTable::release)
      .def("trim", &BlockTable::trim, py::arg("num_tokens"))
      .def_property_readonly("block_size", &BlockTable::block_size)
      .def_property_readonly("num_blocks", &BlockTable::num_blocks)
      .def_property_readonly("num_tokens", &BlockTable::num_tokens)
      .def("blocks", &BlockTable::blocks)
      .def("slots", &slots, py::arg("first"), py::arg("count"));

  m.def("place_rows", &place_rows, py::arg("tables"), py::arg("firsts").noconvert(), py::arg("counts").noconvert(),
        py::arg("positions").noconvert(), py::arg("slots").noconvert(), py::arg("block_tables").noconvert());
  m.def("blake2s", &digest, py::arg("data"), py::arg("person"), py::arg("digest_size"));
}

}  // namespace tercet
