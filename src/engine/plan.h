// SPDX-License-Identifier: Apache-2.0
/* plan.h - settles the sizes of an engine before anything is allocated.
 *
 * Path:     engine_open and `lily inspect` call engine_plan.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_ENGINE_PLAN_H
#define LILY_ENGINE_PLAN_H

#include "engine/engine.h"

/* The kind that options come to for a model; the log is told what `auto` passes over. */
BackendKind engine_backend_kind(const Weights *w, const EngineOptions *options, const Log *log);

/* The backend's part of a settled plan. */
BackendPlan engine_backend_plan(const EnginePlan *plan, const EngineOptions *options);

#endif
