#include "abi/options.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <variant>

#include "control/agreement_wire.h"

namespace rabit {
namespace {

constexpr int64_t kHourMs = 3'600'000;
constexpr int64_t kDayMs = 24 * kHourMs;
constexpr int64_t kMaxBytes = int64_t{1} << 40;

using Field =
    std::variant<int32_t Options::*, int64_t Options::*, bool Options::*, std::string Options::*>;

struct Row {
  std::string_view key;
  Field field;
  int64_t low = 0;  // of numbers
  int64_t high = 0;
  std::string_view words;  // of strings: allowed ones, separated by a blank; empty: any
  std::string_view summary;
};

// Where the process stands, and how it finds the others.
std::vector<Row> PlaceRows() {
  return {
      {"rank", &Options::rank, 0, 65'535, "", "the number of this process"},
      {"size", &Options::size, 1, 65'536, "", "how many processes there are"},
      {"epoch", &Options::epoch, 1, int64_t{1} << 40, "", "counts the inits of this process"},
      {"member", &Options::member, 0, INT32_MAX, "", "of a pool: the number of this process"},
      {"members", &Options::members, 0, 0, "", "of an engine over a pool: its processes, by rank"},
      {"host_key", &Options::host_key, 0, 0, "", "equal for ranks that can share memory"},
      {"store", &Options::store, 0, 0, "", "host:port of the rendezvous store"},
      {"secret", &Options::secret, 0, 0, "", "64 hexadecimal digits, equal on all ranks"},
      {"bind_address", &Options::bind_address, 0, 0, "", "address that peers connect to"},
      {"equal_settings", &Options::equal_settings, 0, 0, "", "what ranks compare when they meet"},
  };
}

// How it works.
std::vector<Row> WorkRows() {
  return {
      {"transport", &Options::transport, 0, 0, "auto tcp shm", "how bytes move between ranks"},
      {"connect_timeout_ms", &Options::connect_timeout_ms, 1, kDayMs, "",
       "how long to wait for the other ranks at start"},
      {"heartbeat_timeout_ms", &Options::heartbeat_timeout_ms, 100, kDayMs, "",
       "a rank that is silent for longer is lost"},
      {"tcp_connections", &Options::tcp_connections, 1, 16, "", "for each pair of ranks and lane"},
      {"tcp_checksum", &Options::tcp_checksum, 0, 0, "auto on off",
       "whether payloads carry checksums; auto: those that leave the host"},
      {"shm_single_copy", &Options::shm_single_copy, 0, 1, "", "copy large messages only once"},
      {"shm_checksum", &Options::shm_checksum, 0, 1, "",
       "whether payloads in shared memory carry checksums; equal on all ranks"},
      {"shm_ring_bytes", &Options::shm_ring_bytes, 0, int64_t{1} << 30, "",
       "shared memory per pair of ranks, lane and direction; 0: 1 MiB, less for many ranks"},
      {"lanes", &Options::lanes, 0, 64, "",
       "collectives that run at the same time; 0: two, or one where ranks share cores"},
      {"lanes_max", &Options::lanes_max, 0, 64, "",
       "lanes that are started, if more than are used at first; 0: no more"},
      {"partition_bytes", &Options::partition_bytes, 1, kMaxBytes, "",
       "larger allreduce tensors are cut into partitions of this size"},
      {"fusion_bytes", &Options::fusion_bytes, 0, kMaxBytes, "",
       "small tensors are joined up to this size; 0: not at all"},
      {"credit_bytes", &Options::credit_bytes, 0, kMaxBytes, "",
       "bytes issued and not yet done everywhere; 0: no limit"},
      {"sizes", &Options::sizes, 0, 0, "measured fixed",
       "measured: the three sizes follow from the measured link where they are the defaults"},
      {"scheduler", &Options::scheduler, 0, 0, "priority fifo", "what runs first"},
      {"allreduce_algorithm", &Options::allreduce_algorithm, 0, 0, "",
       "an algorithm, or rules by size; empty: the cheapest by model"},
      {"route", &Options::route, 0, 0, "", "rules of who runs what, by kind, type and size"},
      {"route_table", &Options::route_table, 0, 0, "", "what was measured; see Options"},
      {"link_model", &Options::link_model, 0, 0, "measured fixed",
       "measured: the ranks time some algorithms when they start, for at most 50 ms"},
      {"deterministic", &Options::deterministic, 0, 1, "", "the same bits whatever the sizes"},
      {"cache_capacity", &Options::cache_capacity, 0, 1 << 24, "", "signatures kept; 0: none"},
      {"coordination", &Options::coordination, 0, 0, "auto star tree",
       "star: rank 0 talks to every rank; tree: ranks between pass on and combine; auto: by size"},
      {"coordination_fan_out", &Options::coordination_fan_out, 2, 1024, "",
       "of a tree: ranks of its host, and leaders of other hosts, right below a rank"},
      {"inline_bytes", &Options::inline_bytes, 0, kCarriedBytesMax, "",
       "a blocking call of at most so many bytes may go with its announcement; 0: none"},
      {"spin_us", &Options::spin_us, -1, 1'000'000, "",
       "microseconds that a waiter spins before it sleeps; -1: by cores and ranks"},
      {"pinned_bytes", &Options::pinned_bytes, 16'777'216, kMaxBytes, "",
       "of the host's memory, pinned for the copies of tensors on devices, at most"},
      {"queue_capacity", &Options::queue_capacity, 1, int64_t{1} << 28, "", "requests in flight"},
      {"backend", &Options::backend, 0, 0, "",
       "who executes collectives, the default first: builtin, mpi, nccl and ps, with commas; or auto"},
      {"mpi", &Options::mpi, 0, 0, "", "the MPI library and its handles; filled in by the package"},
      {"mpi_collectives", &Options::mpi_collectives, 0, 0, "auto library messages",
       "whether the MPI library's collectives run, or our algorithms over its messages"},
      {"mpi_shm", &Options::mpi_shm, 0, 1, "",
       "with mpi_collectives=auto, ranks of one host use shared memory instead of MPI"},
      {"nccl_library", &Options::nccl_library, 0, 0, "",
       "the file of NCCL; empty: what the process has loaded, or what the loader finds"},
      {"stall_warning_ms", &Options::stall_warning_ms, 0, kDayMs, "",
       "report tensors that wait for a rank for longer; 0: never"},
      {"stall_abort_ms", &Options::stall_abort_ms, 0, kDayMs, "",
       "fail when a tensor waits for longer; 0: never"},
      {"operation_timeout_ms", &Options::operation_timeout_ms, 0, kDayMs, "",
       "of one collective on the wire; 0: as long as all peers live"},
      {"operation_log", &Options::operation_log, 0, 0, "", "file for a line of each operation"},
      {"record", &Options::record, 0, 0, "", "file of the record, made by the package; empty: none"},
      {"log_level", &Options::log_level, 0, 0, "debug info warning error off",
       "what is written to the standard error stream"},
  };
}

// Of the backend ps.
std::vector<Row> ServerRows() {
  return {
      {"servers", &Options::servers, 0, 4096, "", "summation servers beside the ranks, for ps"},
      {"server_replicas", &Options::server_replicas, 1, 2, "",
       "servers that have each sum; 2: one of them may be lost"},
      {"ps_async", &Options::ps_async, 0, 1, "",
       "servers keep parameters as well, which each rank updates by itself"},
      {"measure_links", &Options::measure_links, 0, 1, "",
       "ranks and servers measure what their links carry when they meet, for ps"},
      {"link_bandwidth", &Options::link_bandwidth, 0, int64_t{1} << 50, "",
       "bytes per second of this host's link, for ps; 0: what the system says of the interface"},
  };
}

// The table is the grammar: one row per option.
const std::vector<Row>& Table() {
  static const std::vector<Row> table = [] {
    std::vector<Row> rows = PlaceRows();
    for (const std::vector<Row>& others : {WorkRows(), ServerRows()}) {
      rows.insert(rows.end(), others.begin(), others.end());
    }
    return rows;
  }();
  return table;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string Join(std::string_view words) {  // "a b c" -> "a, b or c"
  std::string text;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const bool is_last = end == words.size();
    if (!text.empty()) text += is_last ? " or " : ", ";
    text += words.substr(0, end);
    words.remove_prefix(is_last ? end : end + 1);
  }
  return text;
}

std::string RangeText(const Row& row) {
  if (std::holds_alternative<bool Options::*>(row.field)) return "0 or 1";
  if (std::holds_alternative<std::string Options::*>(row.field)) return Join(row.words);
  return std::to_string(row.low) + " to " + std::to_string(row.high);
}

Status BadValue(const Row& row, std::string_view value) {
  return InvalidArgument("option " + std::string(row.key) + " cannot be '" + std::string(value) +
                         "': it takes " + RangeText(row) + " (" + std::string(row.summary) +
                         "); correct the value");
}

bool ParseInt(std::string_view text, int64_t* value) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

bool HasWord(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != std::string_view::npos) return false;
  return (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

Status Assign(const Row& row, std::string_view value, Options& options) {
  if (auto field = std::get_if<std::string Options::*>(&row.field)) {
    if (!row.words.empty() && !HasWord(row.words, value)) return BadValue(row, value);
    options.*(*field) = std::string(value);
    return Status();
  }
  int64_t number = 0;
  if (!ParseInt(value, &number)) return BadValue(row, value);
  if (number < row.low || number > row.high) return BadValue(row, value);
  if (auto field = std::get_if<int32_t Options::*>(&row.field)) {
    options.*(*field) = static_cast<int32_t>(number);
  } else if (auto wide = std::get_if<int64_t Options::*>(&row.field)) {
    options.*(*wide) = number;
  } else {
    options.*std::get<bool Options::*>(row.field) = number != 0;
  }
  return Status();
}

std::string DefaultText(const Row& row) {
  static const Options defaults;
  if (auto field = std::get_if<std::string Options::*>(&row.field)) return defaults.*(*field);
  if (auto field = std::get_if<int32_t Options::*>(&row.field)) {
    return std::to_string(defaults.*(*field));
  }
  if (auto field = std::get_if<int64_t Options::*>(&row.field)) {
    return std::to_string(defaults.*(*field));
  }
  return defaults.*std::get<bool Options::*>(row.field) ? "1" : "0";
}

Status CheckTogether(const Options& options) {
  if (options.rank >= options.size) {
    return InvalidArgument("option rank is " + std::to_string(options.rank) + " but size is " +
                           std::to_string(options.size) +
                           ": ranks count from 0 to size - 1; correct one of them");
  }
  if (options.size == 1) return Status();
  if (options.store.empty()) {
    return InvalidArgument("option store is missing: " + std::to_string(options.size) +
                           " ranks find each other at a store; pass store=host:port");
  }
  if (options.secret.empty()) {
    return InvalidArgument("option secret is missing: " + std::to_string(options.size) +
                           " ranks authenticate each other with it; pass 64 hexadecimal digits");
  }
  return Status();
}

}  // namespace

Result<std::vector<OptionLine>> SplitOptionLines(std::string_view text) {
  std::vector<OptionLine> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return InvalidArgument("option line '" + std::string(line) +
                             "' has no key and '=': lines are key=value; correct the line");
    }
    lines.push_back({line.substr(0, equals), line.substr(equals + 1)});
  }
  return lines;
}

Status UnknownOption(std::string_view key, const std::vector<std::string_view>& known) {
  auto nearest = std::min_element(known.begin(), known.end(), [&](auto a, auto b) {
    return EditDistance(key, a) < EditDistance(key, b);
  });
  std::string list;
  for (std::string_view name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  return InvalidArgument("unknown option '" + std::string(key) + "'; did you mean '" +
                         std::string(*nearest) + "'? Known options: " + list);
}

LogLevel Options::shown_from() const {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (Name(level) == log_level) return level;
  }
  return LogLevel::kWarning;
}

Result<Options> ParseOptions(std::string_view text) {
  Options options;
  RABIT_ASSIGN_OR_RETURN(std::vector<OptionLine> lines, SplitOptionLines(text));
  std::vector<std::string_view> seen;
  for (const OptionLine& line : lines) {
    auto row = std::find_if(Table().begin(), Table().end(),
                            [&](const Row& candidate) { return candidate.key == line.key; });
    if (row == Table().end()) {
      std::vector<std::string_view> known;
      for (const Row& candidate : Table()) known.push_back(candidate.key);
      return UnknownOption(line.key, known);
    }
    if (std::find(seen.begin(), seen.end(), line.key) != seen.end()) {
      return InvalidArgument("option " + std::string(line.key) +
                             " is given twice: only one can count; remove one");
    }
    seen.push_back(line.key);
    RABIT_RETURN_IF_ERROR(Assign(*row, line.value, options));
  }
  RABIT_RETURN_IF_ERROR(CheckTogether(options));
  return options;
}

Result<std::vector<int>> ParseMembers(std::string_view text) {
  std::vector<int> members;
  const auto refuse = [text](const std::string& why) {
    return InvalidArgument("option members is '" + std::string(text) + "': " + why +
                           "; write the number of each process, by rank, as 3,0,5");
  };
  for (const char* at = text.data(); at <= text.data() + text.size(); ++at) {
    int member = -1;
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), member);
    const bool ends_well = end == text.data() + text.size() || *end == ',';
    if (error != std::errc() || member < 0 || !ends_well) return refuse("it holds no numbers");
    if (std::find(members.begin(), members.end(), member) != members.end()) {
      return refuse(std::to_string(member) + " is there twice");
    }
    members.push_back(member);
    at = end;
  }
  return members;
}

std::vector<OptionInfo> DescribeOptions() {
  std::vector<OptionInfo> infos;
  for (const Row& row : Table()) {
    std::string_view type = "int";
    if (std::holds_alternative<bool Options::*>(row.field)) type = "bool";
    if (std::holds_alternative<std::string Options::*>(row.field)) type = "string";
    infos.push_back({row.key, type, DefaultText(row), RangeText(row), row.summary});
  }
  return infos;
}

}  // namespace rabit
