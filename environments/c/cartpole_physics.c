#include "cartpole_physics.h"

#include <math.h>

static const double GRAVITY = 9.8;     /* m/s^2 */
static const double CART_MASS = 1.0;   /* kg */
static const double POLE_MASS = 0.1;   /* kg */
static const double HALF_LENGTH = 0.5; /* of the pole, m */
static const double FORCE = 10.0;      /* N */
static const double STEP_SEC = 0.02;
static const double MAX_X = 2.4;                             /* m */
static const double MAX_THETA = 12 * 3.14159265358979323846 / 180; /* rad */

/* A number of [-0.05, 0.05): splitmix64, Steele, Lea and Flood (2014). */
static double draw(uint64_t *random)
{
    uint64_t bits = *random += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return 0.1 * ((double)((bits ^ bits >> 31) >> 11) * 0x1p-53) - 0.05;
}

void cartpole_reset(cartpole *pole, uint64_t *random)
{
    pole->x = draw(random);
    pole->x_dot = draw(random);
    pole->theta = draw(random);
    pole->theta_dot = draw(random);
}

/* The paper's accelerations with friction 0, and one step of Euler's method. */
bool cartpole_step(cartpole *pole, int action)
{
    const double mass = CART_MASS + POLE_MASS, moment = POLE_MASS * HALF_LENGTH;
    double force = action == 1 ? FORCE : -FORCE;
    double sine = sin(pole->theta), cosine = cos(pole->theta);
    double push = (force + moment * pole->theta_dot * pole->theta_dot * sine) / mass;
    double theta_acceleration =
        (GRAVITY * sine - cosine * push)
        / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / mass));
    double x_acceleration = push - moment * theta_acceleration * cosine / mass;
    pole->x += STEP_SEC * pole->x_dot;
    pole->x_dot += STEP_SEC * x_acceleration;
    pole->theta += STEP_SEC * pole->theta_dot;
    pole->theta_dot += STEP_SEC * theta_acceleration;
    return fabs(pole->x) > MAX_X || fabs(pole->theta) > MAX_THETA;
}

void cartpole_observe(const cartpole *pole, float observation[CARTPOLE_STATE])
{
    observation[0] = (float)pole->x;
    observation[1] = (float)pole->x_dot;
    observation[2] = (float)pole->theta;
    observation[3] = (float)pole->theta_dot;
}
