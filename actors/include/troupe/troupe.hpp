// Everything that a program needs: jobs, trainers, sessions, their options and outcomes; and where
// LibTorch is on the include path, modules, data and strategies. Programs that are to compile
// faster include single headers. Tests include <troupe/testing.hpp> besides.
#pragma once

#include "troupe/call.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/failure.hpp"
#include "troupe/learner.hpp"
#include "troupe/loggers.hpp"
#include "troupe/observer.hpp"
#include "troupe/options.hpp"
#include "troupe/outcome.hpp"
#include "troupe/ports.hpp"
#include "troupe/session.hpp"
#include "troupe/trainer.hpp"
#include "troupe/value.hpp"

#if __has_include(<torch/nn/module.h>) && __has_include("troupe/module.hpp")
#include "troupe/accelerator.hpp"
#include "troupe/callback.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/hyper_parameters.hpp"
#include "troupe/measures.hpp"
#include "troupe/module.hpp"
#include "troupe/precision.hpp"
#include "troupe/replicated.hpp"
#include "troupe/strategy.hpp"
#include "troupe/sync_batch_norm.hpp"
#include "troupe/tuner.hpp"
#endif
