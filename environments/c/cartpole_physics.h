/* A pole on a cart, as Gymnasium's CartPole-v1 has it: Barto, Sutton and Anderson, "Neuronlike
 * adaptive elements that can solve difficult learning control problems", IEEE Transactions on
 * Systems, Man, and Cybernetics 13 (1983), appendix; without friction.
 */
#ifndef CARTPOLE_PHYSICS_H
#define CARTPOLE_PHYSICS_H

#include <stdbool.h>
#include <stdint.h>

enum { CARTPOLE_STATE = 4, CARTPOLE_ACTIONS = 2, CARTPOLE_MAX_STEPS = 500 };

typedef struct {
    double x, x_dot;         /* position of the cart from the middle, m, m/s */
    double theta, theta_dot; /* angle of the pole from upright, rad, rad/s */
} cartpole;

/* Begins an episode: each of the four numbers is drawn from [-0.05, 0.05).
 *
 * random: state of the generator, any number at first.
 */
void cartpole_reset(cartpole *pole, uint64_t *random);

/* Pushes the cart for 0.02 s, to the left (action 0) or to the right (1). Each step's reward is 1.
 * Returns whether the episode has ended: the cart is off by more than 2.4 m, or the pole has
 * fallen by more than 12 degrees. */
bool cartpole_step(cartpole *pole, int action);

/* Writes what the agent sees: x, x_dot, theta, theta_dot. */
void cartpole_observe(const cartpole *pole, float observation[CARTPOLE_STATE]);

#endif
