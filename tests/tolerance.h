// SPDX-License-Identifier: Apache-2.0
/* tolerance.h - every bound that tests of backends use, with its reason.
 *
 * Path:     tests of ref, cpu and the devices include it.
 * Owns:     nothing.
 *
 * "Relative rms" of values: rms(found - expected) / rms(expected); of logits: rms of the difference
 * over the standard deviation of the expected logits (so defined in tests/data/oracle). The
 * expected arrays were computed in f64 and stored as F32: their own rounding is 3e-8. */
#ifndef LILY_TESTS_TOLERANCE_H
#define LILY_TESTS_TOLERANCE_H

/* f32 activations against the f64 reference, each traced value, state and set of logits. Two other
 * f32 implementations lie at 1e-7 to 1.7e-6 (logits, residual stream) and 2.3e-6 (states): ten
 * times their typical distance, and fifty times below the mildest mistake that logits show. */
static const double TOL_F32_REL = 1e-5;

/* f32 logits, largest difference of any one: ten times the worst that the reference implementations
 * measured (1.8e-5 on tiny-a, 3.7e-5 on tiny-b). */
static const double TOL_F32_LOGIT_A = 2e-4;
static const double TOL_F32_LOGIT_B = 4e-4;

/* f32: argmax is equal and a continuation the same while the reference's margin exceeds this; at
 * most twice TOL_F32_LOGIT_B can separate two logits. */
static const double TOL_F32_MARGIN = 1e-3;

/* f64 against the f64 reference, both rounded once to F32: two f64 orders of summation are 1e-14
 * apart, so hardly one value in a million rounds to another float. 1e-6 is required; this bound
 * also sees an eps of 128e-6 in the q and k norms of the delta rule (4e-7) and one float function
 * left in the f64 path (2e-8). */
static const double TOL_F64_REL = 1e-9;
/* One such logit that did round to the other float: logits are below 16, so that is 1e-6. The
 * negative log-likelihoods are taken from these floats. */
static const double TOL_F64_LOGIT = 2e-6;

/* bf16 activations over a prompt set: 1.5 times the relative rms and twice the mean KL divergence
 * (nats) of the worse of two bf16 reference implementations. Not the largest difference: one expert
 * that changes moves a row by more than 1. */
static const double TOL_BF16_REL_A = 0.054;
static const double TOL_BF16_KL_A = 0.0087;
static const double TOL_BF16_REL_B = 0.042;
static const double TOL_BF16_KL_B = 0.006;
/* cpu as it runs (bf16 KV cache and queries, 16-bit activations in products, the rest f32): three
 * times what both of its columns show over all prompts up to 65 (relative rms 0.0012 and 0.0006, KL
 * 6e-6 and 1.5e-6), a tenth of the better bf16 reference (0.031 and 0.023, KL 0.0031 and 0.002). */
static const double TOL_CPU_REL_A = 0.004;
static const double TOL_CPU_KL_A = 5e-5;
static const double TOL_CPU_REL_B = 0.002;
static const double TOL_CPU_KL_B = 2e-5;
/* The same where the amx column reads prompts: weights and inputs of their products are rounded to
 * bf16, all else is as above. 1.5 times what all prompts up to 65 show (relative rms 0.0126 and
 * 0.0125, KL 5.1e-4 and 5.8e-4): below the better bf16 reference in each. */
static const double TOL_AMX_REL_A = 0.019;
static const double TOL_AMX_KL_A = 8e-4;
static const double TOL_AMX_REL_B = 0.019;
static const double TOL_AMX_KL_B = 9e-4;
/* cpu: decode against prefill of the same tokens. The two differ in f32 orders of summation, which
 * can move a value of the bf16 cache to its neighbour: a part of TOL_CPU_REL_A. */
static const double TOL_CPU_PHASES_REL = 0.004;
/* The same where prefill has bf16 products and decode has not: 1.5 times what tiny-a and tiny-b
 * show (0.017 and 0.013), about what separates prefill from f64. */
static const double TOL_AMX_PHASES_REL = 0.025;
/* Share of equal argmax of teacher-forced bf16 decoding, and the margin above which all are. */
static const double TOL_BF16_ARGMAX = 0.9;
static const double TOL_BF16_MARGIN = 1.0;
/* Mean negative log-likelihood, nats a token. */
static const double TOL_BF16_NLL = 0.05;
/* The same in f32: 1.7e-6 of a logit's deviation moves a mean over 516 tokens by less. */
static const double TOL_F32_NLL = 1e-5;

#endif
