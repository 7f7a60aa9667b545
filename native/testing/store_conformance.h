// What every Store must do.  RABIT_STORE_SUITE(Name, fixture) registers the cases for one
// implementation; `fixture` is a type with `std::unique_ptr<Store> Open()`, whose stores share one
// board and live shorter than the fixture.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/board.h"
#include "rendezvous/store.h"
#include "testing/run_ranks.h"
#include "testing/test.h"

namespace rabit::testing {

inline Deadline StoreSoon() { return After(std::chrono::seconds(20)); }

inline void StoreGivesBackWhatWasSet(Store& one, Store& other) {
  const std::string binary("a\0b\xff", 4);
  ASSERT_OK(one.Set("1/address/0", binary));
  ASSERT_OK(one.Set("1/empty", ""));

  EXPECT_EQ(*other.Get("1/address/0", StoreSoon()), binary);
  EXPECT_EQ(*other.Get("1/empty", StoreSoon()), "");
  ASSERT_OK(other.Set("1/address/0", "new"));
  EXPECT_EQ(*one.Get("1/address/0", StoreSoon()), "new");
}

inline void StoreGetWaitsForTheKey(Store& one, Store& other) {
  std::thread setter([&] {
    EXPECT_OK(other.Get("ready", StoreSoon()));
    EXPECT_OK(other.Set("late", "value"));
  });
  EXPECT_OK(one.Set("ready", ""));
  auto value = one.Get("late", StoreSoon());
  setter.join();

  ASSERT_OK(value);
  EXPECT_EQ(*value, "value");
}

inline void StoreGetEndsAtTheDeadline(Store& one, Store& other) {
  const Status status = one.Get("never", After(std::chrono::milliseconds(30))).status();

  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("'never'"), std::string::npos) << status;
  // The store is not disturbed by a wait that was given up, and later answers are not mixed up.
  ASSERT_OK(other.Set("never", "1"));
  ASSERT_OK(one.Set("other", "2"));
  EXPECT_EQ(*one.Get("other", StoreSoon()), "2");
  EXPECT_EQ(*one.Get("never", StoreSoon()), "1");
  EXPECT_EQ(*one.Get("never", Deadline{}), "1");
}

inline void StoreSetsOnce(Store& one, Store& other) {
  EXPECT_EQ(*one.SetOnce("verdict", "first"), "first");
  EXPECT_EQ(*other.SetOnce("verdict", "second"), "first");
  EXPECT_EQ(*other.Get("verdict", StoreSoon()), "first");
  EXPECT_EQ(one.SetOnce("", "value").status().code(), Code::kInvalidArgument);
}

inline void StoreAddCounts(Store& one, Store& other) {
  EXPECT_EQ(*one.Add("counter", 0), 0);
  EXPECT_EQ(*one.Add("counter", 5), 5);
  EXPECT_EQ(*other.Add("counter", -7), -2);
  EXPECT_EQ(*one.Get("counter", StoreSoon()), "-2");
  ASSERT_OK(one.Set("text", "abc"));
  EXPECT_EQ(one.Add("text", 1).status().code(), Code::kInvalidArgument);
}

inline void StoreAddsOfManyThreadsAllCount(Store& one, Store& other) {
  RunRanks(4, [&](int rank) {
    for (int i = 0; i < 50; ++i) EXPECT_OK((rank % 2 == 0 ? one : other).Add("sum", rank + 1));
  });
  EXPECT_EQ(*one.Add("sum", 0), 50 * (1 + 2 + 3 + 4));
}

inline void StoreRefusesWhatIsTooLong(Store& one, Store& other) {
  const std::string long_key(kStoreKeyBytesMax + 1, 'k');
  const std::string long_value(kStoreValueBytesMax + 1, 'v');
  for (const Status& status : {one.Set("", "v"), one.Set(long_key, "v"), one.Set("key", long_value),
                               one.Get(long_key, StoreSoon()).status(),
                               one.Get("", StoreSoon()).status(), one.Add(long_key, 1).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
  }
  const std::string longest_key(kStoreKeyBytesMax, 'k');
  const std::string longest_value(kStoreValueBytesMax, 'v');
  ASSERT_OK(one.Set(longest_key, longest_value));
  EXPECT_TRUE(*other.Get(longest_key, StoreSoon()) == longest_value);
}

// A waiting Get must not hold up other calls on the same object.
inline void StoreServesOthersWhileOneWaits(Store& one, Store& other) {
  std::thread waiter([&] { EXPECT_OK(one.Get("gate", StoreSoon())); });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(*one.Add("calls", 1), i + 1);
  EXPECT_OK(one.Set("gate", "open"));
  waiter.join();
}

template <class Fixture>
void RegisterStoreSuite(const std::string& suite) {
  using Body = void (*)(Store&, Store&);
  const std::pair<const char*, Body> cases[] = {
      {"gives_back_what_was_set", StoreGivesBackWhatWasSet},
      {"get_waits_for_the_key", StoreGetWaitsForTheKey},
      {"get_ends_at_the_deadline", StoreGetEndsAtTheDeadline},
      {"sets_once", StoreSetsOnce},
      {"add_counts", StoreAddCounts},
      {"adds_of_many_threads_all_count", StoreAddsOfManyThreadsAllCount},
      {"refuses_what_is_too_long", StoreRefusesWhatIsTooLong},
      {"serves_others_while_one_waits", StoreServesOthersWhileOneWaits},
  };
  for (const auto& [name, body] : cases) {
    Register(suite, name, [body = body] {
      Fixture fixture;
      std::unique_ptr<Store> one = fixture.Open();
      std::unique_ptr<Store> other = fixture.Open();
      if (one && other) body(*one, *other);
    });
  }
}

#define RABIT_STORE_SUITE(suite, Fixture)                            \
  [[maybe_unused]] static const int rabit_store_suite_##suite = [] { \
    ::rabit::testing::RegisterStoreSuite<Fixture>(#suite);           \
    return 0;                                                        \
  }()

}  // namespace rabit::testing
