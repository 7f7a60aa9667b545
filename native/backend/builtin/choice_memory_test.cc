#include "backend/builtin/choice_memory.h"

#include "testing/test.h"

namespace rabit {
namespace {

TEST(ChoiceMemory, finds_what_was_kept_for_the_same_arguments_only) {
  ChoiceMemory memory;
  memory.Keep(3, DType::kFloat32, 4096, ChoiceMemory::kIndexMax);
  memory.Keep(0, DType::kFloat32, 0, 0);

  EXPECT_EQ(memory.Find(3, DType::kFloat32, 4096), ChoiceMemory::kIndexMax);
  EXPECT_EQ(memory.Find(0, DType::kFloat32, 0), 0);
  EXPECT_EQ(memory.Find(2, DType::kFloat32, 4096), ChoiceMemory::kUnknown);
  EXPECT_EQ(memory.Find(3, DType::kFloat16, 4096), ChoiceMemory::kUnknown);
  EXPECT_EQ(memory.Find(3, DType::kFloat32, 4100), ChoiceMemory::kUnknown);
}

TEST(ChoiceMemory, more_choices_than_it_holds_never_give_a_wrong_one) {
  ChoiceMemory memory;
  const auto choice_of = [](int64_t bytes) { return static_cast<int>(bytes % 15); };
  for (int64_t bytes = 0; bytes < 10'000; ++bytes) {
    memory.Keep(1, DType::kInt8, bytes, choice_of(bytes));
  }

  int known = 0;
  for (int64_t bytes = 0; bytes < 10'000; ++bytes) {
    const int found = memory.Find(1, DType::kInt8, bytes);
    if (found == ChoiceMemory::kUnknown) continue;
    ++known;
    EXPECT_EQ(found, choice_of(bytes));
  }
  EXPECT_GE(known, 128);
}

TEST(ChoiceMemory, does_not_keep_what_its_keys_cannot_tell_apart) {
  ChoiceMemory memory;
  memory.Keep(1 << 16, DType::kFloat32, 64, 1);
  memory.Keep(0, DType::kFloat32, int64_t{1} << 40, 2);

  EXPECT_EQ(memory.Find(1 << 16, DType::kFloat32, 64), ChoiceMemory::kUnknown);
  EXPECT_EQ(memory.Find(0, DType::kFloat32, int64_t{1} << 40), ChoiceMemory::kUnknown);
  EXPECT_EQ(memory.Find(0, DType::kFloat32, 64), ChoiceMemory::kUnknown);
}

TEST(ChoiceMemory, forgets) {
  ChoiceMemory memory;
  memory.Keep(0, DType::kFloat64, 8, 5);
  memory.Clear();

  EXPECT_EQ(memory.Find(0, DType::kFloat64, 8), ChoiceMemory::kUnknown);
}

}  // namespace
}  // namespace rabit
