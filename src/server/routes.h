// SPDX-License-Identifier: Apache-2.0
/* routes.h - the table of routes and what each answers.
 *
 * Path:     http.c finds a route by its path, checks, reads the body and calls route_answer.
 * Owns:     nothing.  Thread: the connection's. */
#ifndef LILY_SERVER_ROUTES_H
#define LILY_SERVER_ROUTES_H

#include "server/reply.h"

/* The route of a path; never NULL: the last one stands for paths that are none. *name: what is
 * behind a route that ends in "/". */
const Route *route_find(const char *path, const char **name);
int route_number(const Route *route);
/* The path as in the table, for metrics and logs. */
const char *route_path(const Route *route);
/* "GET, HEAD, OPTIONS" */
const char *route_methods(const Route *route);
bool route_takes(const Route *route, const char *method);
bool route_is_none(const Route *route);
bool route_needs_key(const Route *route);
bool route_has_body(const Route *route);
/* A job's whole answer may be a route's; then http.c logs nothing itself. */
bool route_is_job(const Route *route);
/* [METRICS_ROUTES] */
const char *const *route_names(void);

/* Answers a request that was read whole and not refused. It may leave the connection suspended:
 * then it is called again when c->job has its answer. */
enum MHD_Result route_answer(Call *c);

#endif
