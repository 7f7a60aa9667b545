#include "abi/hosts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "rendezvous/equal_settings.h"
#include "rendezvous/gathering.h"

namespace rabit {
namespace {

// A member that learns of more new ones than this reads what the lowest rank has collected.
constexpr size_t kAskedSinglyMax = 8;

// What ranks of one host share and ranks of others do not: the boot, and the container's name.
std::string SystemHostKey() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  return boot + "/" + name;
}

// Between ranks that differ in this there is no shared memory: they meet at an abstract Unix
// socket, which belongs to a network namespace, and show each other their user.
std::string SharingKey() {
  struct stat network{};
  (void)::stat("/proc/self/ns/net", &network);
  return std::to_string(network.st_ino) + "/" + std::to_string(::geteuid());
}

std::string ToRecord(const Options& options, const std::string& address, const std::string& place) {
  return SettingsDigest(options.equal_settings) + " " + ToText(FindProcessors()) + " " + address +
         " " + place;
}

// Takes what is before the next space off `record`.
std::string_view TakeField(std::string_view& record) {
  const size_t end = std::min(record.find(' '), record.size());
  const std::string_view field = record.substr(0, end);
  record.remove_prefix(std::min(end + 1, record.size()));
  return field;
}

// The records of all ranks.  Members know each other from engines before: what a few of them miss
// is asked for one by one, so that an engine of the same members waits for nobody's collection.
Result<std::vector<std::string>> ReadRecords(const Options& options, const Members& members,
                                             MemberBook& book, Deadline deadline) {
  const auto epoch = static_cast<uint64_t>(options.epoch);
  const auto key_of = [&](int rank) { return members.KeyOf(epoch, "host", rank); };
  std::vector<int> ranks(static_cast<size_t>(options.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto unknown = static_cast<size_t>(std::count_if(
      ranks.begin(), ranks.end(), [&](int rank) { return !book.Knows(key_of(rank)); }));
  std::vector<std::string> records;
  if (members.are_ranks() || options.rank == 0 || unknown > kAskedSinglyMax) {
    const std::string all_key = std::to_string(options.epoch) + "/hosts";
    RABIT_ASSIGN_OR_RETURN(records,
                           CollectWords(book, key_of, all_key, ranks, options.rank, deadline));
    // The next engine of these members asks for none of them again.
    for (const int rank : ranks) book.Learn(key_of(rank), records[static_cast<size_t>(rank)]);
    return records;
  }
  for (const int rank : ranks) {
    Result<std::string> record = book.Get(key_of(rank), deadline);
    if (!record.ok()) {
      const int known = record.status().culprit();
      return Status(record.status()).WithCulprit(known >= 0 ? known : rank);
    }
    records.push_back(*std::move(record));
  }
  return records;
}

}  // namespace

std::string HostKeyOf(const Options& options) {
  return options.host_key.empty() ? SystemHostKey() : options.host_key;
}

Status Tell(const Options& options, const Members& members, Store& store, std::string_view what,
            const std::string& value) {
  const std::string key = members.KeyOf(static_cast<uint64_t>(options.epoch), what, options.rank);
  if (members.are_ranks()) return store.Set(key, value);
  // Two processes with one number would overwrite each other's address, and peers would reach the
  // wrong one.
  RABIT_ASSIGN_OR_RETURN(const std::string held, store.SetOnce(key, value));
  if (held == value) return {};
  return InvalidArgument(
      "member " + std::to_string(members.Of(options.rank)) + " has told the others '" + held +
      "' as its " + std::string(what) + ", and now '" + value +
      "': a number belongs to one process, and its engines have the same settings");
}

// Hosts are numbered by first appearance, so that all ranks number them alike.
Result<Hosts> MeetHosts(const Options& options, const Members& members, MemberBook& book,
                        const std::string& address, Deadline deadline) {
  const std::string host_key = HostKeyOf(options);
  const std::string mine = host_key + " " + SharingKey();
  const std::string digest = SettingsDigest(options.equal_settings);
  RABIT_RETURN_IF_ERROR(Tell(options, members, book, "host", ToRecord(options, address, mine)));
  const Result<std::vector<std::string>> records = ReadRecords(options, members, book, deadline);
  if (records.status().code() == Code::kTimedOut) {
    return Status(records.status().code(),
                  "rank " + std::to_string(records.status().culprit()) +
                      " has not appeared: " + records.status().message() +
                      ". Look at why it did not start, or raise RABIT_CONNECT_TIMEOUT")
        .WithCulprit(records.status().culprit());
  }
  const auto refuse_settings = [&] {
    const std::string scope = std::to_string(options.epoch) + "/settings/";
    return RefuseSettings(book, scope, options.rank, options.size, options.equal_settings,
                          deadline);
  };
  // Rank 0 has collected the records of another number of ranks: the size is a setting.
  if (records.status().code() == Code::kMismatch) return refuse_settings();
  if (!records.ok()) return records.status();
  int apart = -1;  // a rank of this host with which no memory can be shared
  std::map<std::string, int, std::less<>> numbers;
  std::vector<std::vector<Processors>> processors;  // host number -> those of its ranks
  Hosts hosts;
  for (int rank = 0; rank < options.size; ++rank) {
    std::string_view record = (*records)[static_cast<size_t>(rank)];
    if (TakeField(record) != digest) return refuse_settings();
    Result<Processors> of_rank = ParseProcessors(TakeField(record));
    if (!of_rank.ok()) {
      return Status(of_rank.status().code(),
                    "the processors that rank " + std::to_string(rank) +
                        " has published cannot be read: " + of_rank.status().message() +
                        ". Install one version on all ranks")
          .WithCulprit(rank);
    }
    hosts.addresses.emplace_back(TakeField(record));
    if (record != mine && record.starts_with(host_key + " ")) apart = rank;
    const auto next = static_cast<int>(numbers.size());
    const int number = numbers.emplace(record, next).first->second;
    hosts.topology.host_of.push_back(number);
    if (number == next) processors.emplace_back();
    processors[static_cast<size_t>(number)].push_back(*std::move(of_rank));
  }
  if (apart >= 0 && options.transport != "tcp") {
    Logger(options.shown_from(), options.rank)
        .Warning("rank " + std::to_string(options.rank) + " shares no memory with rank " +
                 std::to_string(apart) +
                 " of the same host, which is in another network namespace or of another user; "
                 "the two use TCP");
  }
  for (const auto& ranks : processors) hosts.topology.cores_of.push_back(ShareCores(ranks));
  return hosts;
}

}  // namespace rabit
