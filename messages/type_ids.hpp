// The list of all types that actors may send. To send a type that is missing here is a compile
// error.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/type_id.hpp>

#include "messages/control.hpp"

// clang-format off
CAF_BEGIN_TYPE_ID_BLOCK(troupe, caf::first_custom_type_id)
  // wire: plain data, inspected
  CAF_ADD_TYPE_ID(troupe, (troupe::activate_generation))
  CAF_ADD_TYPE_ID(troupe, (troupe::propose_stop))
  CAF_ADD_TYPE_ID(troupe, (troupe::stop_at))
  CAF_ADD_TYPE_ID(troupe, (troupe::tear_down))
  CAF_ADD_TYPE_ID(troupe, (troupe::step_done))
  CAF_ADD_TYPE_ID(troupe, (troupe::stop_vote))
  CAF_ADD_TYPE_ID(troupe, (troupe::rank_busy))
  // local: may hold tensors, exceptions, shared state
  CAF_ADD_TYPE_ID(troupe, (troupe::form_generation))
  CAF_ADD_TYPE_ID(troupe, (troupe::close_generation))
  CAF_ADD_TYPE_ID(troupe, (troupe::prepared))
  CAF_ADD_TYPE_ID(troupe, (troupe::closed_generation))
  CAF_ADD_TYPE_ID(troupe, (troupe::rank_finished))
  CAF_ADD_TYPE_ID(troupe, (troupe::rank_failed))
  CAF_ADD_TYPE_ID(troupe, (troupe::queue_value))
  CAF_ADD_TYPE_ID(troupe, (troupe::torn_down))
  CAF_ADD_TYPE_ID(troupe, (troupe::write_checkpoint))
  CAF_ADD_TYPE_ID(troupe, (troupe::step_committed))
  CAF_ADD_TYPE_ID(troupe, (troupe::checkpoint_report))
  CAF_ADD_TYPE_ID(troupe, (troupe::flush))
  CAF_ADD_TYPE_ID(troupe, (troupe::flushed))
  CAF_ADD_TYPE_ID(troupe, (troupe::lane_answered))
  CAF_ADD_TYPE_ID(troupe, (troupe::lane_closed))
  CAF_ADD_TYPE_ID(troupe, (troupe::tick))
  CAF_ADD_TYPE_ID(troupe, (troupe::begin_job))
  CAF_ADD_TYPE_ID(troupe, (troupe::deadline_passed))
  CAF_ADD_TYPE_ID(troupe, (troupe::storage_answered))
  CAF_ADD_TYPE_ID(troupe, (troupe::caller_request))
  CAF_ADD_TYPE_ID(troupe, (troupe::process_changed))
  CAF_ADD_TYPE_ID(troupe, (troupe::process_gone))
  CAF_ADD_TYPE_ID(troupe, (troupe::far_ended))
CAF_END_TYPE_ID_BLOCK(troupe)
// clang-format on

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::form_generation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::close_generation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::prepared)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::closed_generation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::rank_finished)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::rank_failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::queue_value)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::torn_down)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::write_checkpoint)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::step_committed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::checkpoint_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flush)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::flushed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::lane_answered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::lane_closed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::begin_job)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::deadline_passed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::storage_answered)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::caller_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::process_changed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::process_gone)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::far_ended)
