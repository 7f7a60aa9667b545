#include "engine/operation_log.h"

#include "base/printable.h"

namespace rabit {
namespace {

constexpr std::string_view kHeader = "name,kind,type,group,bytes,begin_us,us,is_ok";
// Whoever adds up a log must not take a part of it for all.
constexpr std::string_view kIncomplete = "# incomplete: the disk did not take the rest";
constexpr std::string_view kEndsIncomplete = "\n# incomplete: the disk did not take the rest\n";
constexpr LineFileForm kLogForm = {"log", "\n", "\n", kEndsIncomplete, 64 << 20};

void AppendName(std::string& line, std::string_view name) {
  line += '"';
  for (const char c : Printable(name)) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

void AppendMicros(std::string& line, int64_t ns) {
  line += std::to_string(ns / 1000) + '.';
  const std::string rest = std::to_string(ns % 1000);
  line.append(3 - rest.size(), '0');
  line += rest;
}

}  // namespace

OperationLog::OperationLog(int rank, const Logger& logger) : file_(rank, logger, kLogForm) {}

Status OperationLog::Start(const std::string& path) { return file_.Open(path, kHeader); }

void OperationLog::Add(const Entry& entry) {
  std::string line;
  AppendName(line, entry.name);
  line += ',';
  line += Name(entry.kind);
  line += ',';
  line += Name(entry.dtype);
  line += ',' + std::to_string(entry.group) + ',' + std::to_string(entry.bytes) + ',';
  AppendMicros(line, entry.begin_ns);
  line += ',';
  AppendMicros(line, entry.end_ns - entry.begin_ns);
  line += entry.is_ok ? ",1" : ",0";
  if (!file_.Add(line)) file_.End(kIncomplete);
}

}  // namespace rabit
