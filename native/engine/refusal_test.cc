// A request that one rank refuses fails on the ranks that submit it, at once and once.
#include <string>
#include <vector>

#include "engine/engine.h"
#include "testing/engine_job.h"
#include "testing/soon.h"

namespace rabit {
namespace {

using testing::MakeRequest;
using testing::Soon;
using testing::TestJob;

bool Mentions(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

Status SubmitAndWait(Engine& engine, Request request) {
  Handle handle;
  RABIT_RETURN_IF_ERROR(engine.Submit({&request, 1}, {&handle, 1}));
  const Status status = engine.Wait(handle, Soon());
  engine.Release(handle);
  return status;
}

void ExpectTold(const Status& status, int rank, int refuser) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
  if (rank == refuser) return;
  const std::string who = "broadcast 'w': rank " + std::to_string(refuser) + " refused it: rank 7";
  EXPECT_TRUE(Mentions(status.message(), who)) << status.message();
  EXPECT_EQ(status.culprit(), refuser);
}

TEST(EngineRefusal, a_bad_root_on_one_rank_fails_the_others_and_the_name_works_again) {
  for (int refuser = 0; refuser < 3; ++refuser) {
    TestJob(3).Run([&](Engine& engine, int rank) {
      for (int round = 0; round < 3; ++round) {
        std::vector<float> values(4, static_cast<float>(rank));
        Request request = MakeRequest("w", Kind::kBroadcast, values);
        request.signature.root = rank == refuser ? 7 : 0;
        ExpectTold(SubmitAndWait(engine, request), rank, refuser);
        request.signature.root = 2;
        EXPECT_OK(SubmitAndWait(engine, request));
      }
    });
  }
}

TEST(EngineRefusal, a_call_that_waits_hears_it_too) {
  TestJob(3).Run([](Engine& engine, int rank) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(4, 1.0f);
      Request request = MakeRequest("w", Kind::kBroadcast, values);
      request.signature.root = rank == 1 ? 7 : 0;
      Handle handle;
      ExpectTold(engine.Run(request, handle, Soon()), rank, 1);
      if (handle.value != 0) engine.Release(handle);
      request.signature.root = 0;
      EXPECT_OK(engine.Run(request, handle, Soon()));
      engine.Release(handle);
    }
  });
}

TEST(EngineRefusal, what_was_submitted_with_it_fails_as_well) {
  TestJob(2).Run([](Engine& engine, int rank) {
    std::vector<float> values(4, 1.0f);
    Request requests[] = {MakeRequest("good", Kind::kAllreduce, values),
                          MakeRequest("w", Kind::kBroadcast, values)};
    requests[1].signature.root = rank == 1 ? 7 : 0;
    Handle handles[2];
    const Status submitted = engine.Submit(requests, handles);
    EXPECT_EQ(submitted.ok(), rank == 0);
    if (rank == 1) return;
    const Status good = engine.Wait(handles[0], Soon());
    EXPECT_TRUE(Mentions(good.message(), "allreduce 'good': rank 1 refused it: broadcast 'w'"))
        << good.message();
    ExpectTold(engine.Wait(handles[1], Soon()), rank, 1);
  });
}

// What a rank does just before it stops reaches the others before its stop does.
TEST(EngineRefusal, is_heard_when_the_rank_stops_at_once) {
  for (int i = 0; i < 50; ++i) {
    TestJob(2).Run([](Engine& engine, int rank) {
      std::vector<float> values(4, 1.0f);
      Request request = MakeRequest("w", Kind::kBroadcast, values);
      request.signature.root = rank == 1 ? 7 : 0;
      Handle handle;
      const Status submitted = engine.Submit({&request, 1}, {&handle, 1});
      EXPECT_EQ(submitted.code(), rank == 1 ? Code::kInvalidArgument : Code::kOk);
      if (rank == 0) ExpectTold(engine.Wait(handle, Soon()), rank, 1);
    });
  }
}

TEST(EngineRefusal, a_mistake_of_every_rank_leaves_nothing_behind) {
  TestJob(3).Run([](Engine& engine, int) {
    std::vector<float> values(4, 1.0f);
    Request request = MakeRequest("w", Kind::kBroadcast, values);
    request.signature.root = 7;
    EXPECT_EQ(SubmitAndWait(engine, request).code(), Code::kInvalidArgument);
    request.signature.root = 0;
    EXPECT_OK(SubmitAndWait(engine, request));
  });
}

TEST(EngineRefusal, a_round_in_flight_is_not_touched) {
  TestJob(2).Run([](Engine& engine, int rank) {
    std::vector<float> values(4, 1.0f);
    if (rank == 1) {
      EXPECT_OK(SubmitAndWait(engine, MakeRequest("go", Kind::kBarrier, values)));
    }
    Request good = MakeRequest("w", Kind::kBroadcast, values);
    good.signature.root = 0;
    Handle handle;
    ASSERT_OK(engine.Submit({&good, 1}, {&handle, 1}));
    if (rank == 0) {
      Request bad = MakeRequest("w", Kind::kBroadcast, values);
      bad.signature.root = 7;
      EXPECT_EQ(SubmitAndWait(engine, bad).code(), Code::kInvalidArgument);
      EXPECT_OK(SubmitAndWait(engine, MakeRequest("go", Kind::kBarrier, values)));
    }
    EXPECT_OK(engine.Wait(handle, Soon()));
  });
}

}  // namespace
}  // namespace rabit
