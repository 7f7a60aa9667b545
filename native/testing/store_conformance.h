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

inline void StoreVersionsCountWhatWasSet(Store& one, Store& other) {
  ASSERT_OK(one.Set("name", "a"));
  EXPECT_EQ(other.Watch("name", 0, StoreSoon())->version, 1u);
  ASSERT_OK(other.Set("name", "b"));

  const auto held = one.Watch("name", 0, StoreSoon());
  EXPECT_EQ(held->version, 2u);
  EXPECT_EQ(held->value, "b");
}

inline void StoreSetsWhereTheVersionIsTheExpectedOne(Store& one, Store& other) {
  const auto first = one.CompareAndSet("members", 0, "0,1");
  ASSERT_OK(first);
  EXPECT_TRUE(first->is_mine);
  EXPECT_EQ(first->held.version, 1u);

  const auto late = other.CompareAndSet("members", 0, "0,2");
  EXPECT_FALSE(late->is_mine);
  EXPECT_EQ(late->held.value, "0,1");
  EXPECT_EQ(late->held.version, 1u);
  const auto next = other.CompareAndSet("members", late->held.version, "0,2");
  EXPECT_TRUE(next->is_mine);
  EXPECT_EQ(next->held.version, 2u);
  EXPECT_EQ(*one.Get("members", StoreSoon()), "0,2");
  // A version from nowhere changes nothing, even where there is no such key.
  EXPECT_FALSE(one.CompareAndSet("absent", 7, "x")->is_mine);
  EXPECT_EQ(one.Watch("absent", 0, Deadline{}).status().code(), Code::kTimedOut);
}

// Each rank adds to a number by reading and comparing; none of the additions may be lost.
inline void StoreAdditionsOfManyThreadsAllCount(Store& one, Store& other) {
  RunRanks(4, [&](int rank) {
    Store& store = rank % 2 == 0 ? one : other;
    for (int i = 0; i < 25; ++i) {
      Versioned seen;
      for (;;) {
        const int sum = seen.version == 0 ? 0 : std::stoi(seen.value);
        auto swap = store.CompareAndSet("sum", seen.version, std::to_string(sum + rank + 1));
        ASSERT_OK(swap);
        if (swap->is_mine) break;
        seen = std::move(swap->held);
      }
    }
  });
  EXPECT_EQ(*one.Get("sum", StoreSoon()), std::to_string(25 * (1 + 2 + 3 + 4)));
}

inline void StoreWatchWaitsForAChange(Store& one, Store& other) {
  ASSERT_OK(one.Set("epoch", "1"));
  std::thread changer([&] {
    EXPECT_OK(other.Get("watching", StoreSoon()));
    EXPECT_OK(other.Set("epoch", "2"));
  });
  EXPECT_OK(one.Set("watching", ""));
  const auto changed = one.Watch("epoch", 1, StoreSoon());
  changer.join();

  ASSERT_OK(changed);
  EXPECT_EQ(changed->value, "2");
  EXPECT_EQ(changed->version, 2u);
}

inline void StoreWatchEndsAtTheDeadline(Store& one, Store& other) {
  ASSERT_OK(one.Set("epoch", "1"));
  const Status status = other.Watch("epoch", 1, After(std::chrono::milliseconds(20))).status();

  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("'epoch' has version 1"), std::string::npos) << status;
  // Those who wait for other versions of one key do not end each other's wait.
  std::thread late([&] { EXPECT_EQ(other.Watch("epoch", 2, StoreSoon())->value, "3"); });
  EXPECT_OK(one.Set("epoch", "2"));
  EXPECT_EQ(one.Watch("epoch", 1, StoreSoon())->value, "2");
  EXPECT_OK(one.Set("epoch", "3"));
  late.join();
}

inline void StoreRefusesWhatIsTooLong(Store& one, Store& other) {
  const std::string long_key(kStoreKeyBytesMax + 1, 'k');
  const std::string long_value(kStoreValueBytesMax + 1, 'v');
  for (const Status& status : {one.Set("", "v"), one.Set(long_key, "v"), one.Set("key", long_value),
                               one.Get(long_key, StoreSoon()).status(),
                               one.Get("", StoreSoon()).status(), 
                               one.CompareAndSet(long_key, 0, "v").status()}) {
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
  for (int i = 0; i < 20; ++i) EXPECT_OK(one.Set("calls", std::to_string(i)));
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
      {"versions_count_what_was_set", StoreVersionsCountWhatWasSet},
      {"sets_where_the_version_is_the_expected_one", StoreSetsWhereTheVersionIsTheExpectedOne},
      {"additions_of_many_threads_all_count", StoreAdditionsOfManyThreadsAllCount},
      {"watch_waits_for_a_change", StoreWatchWaitsForAChange},
      {"watch_ends_at_the_deadline", StoreWatchEndsAtTheDeadline},
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
