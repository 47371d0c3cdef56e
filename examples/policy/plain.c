/* A program that knows nothing of Sluice: 8 counters, 20000 tasks. STARPU_SCHED and STARPU_SCHED_LIB choose who
 * schedules it. Prints that name, and fails unless every counter is right. */
#include <starpu.h>
#include <stdio.h>

enum { num_counters = 8, num_tasks = 20000 };

static void count(void* buffers[], void* argument) {
  (void)argument;
  ++*(int*)STARPU_VARIABLE_GET_PTR(buffers[0]);
}

static struct starpu_codelet codelet = {
    .cpu_funcs = {count}, .nbuffers = 1, .modes = {STARPU_RW}, .name = "count"};

int main(void) {
  int counters[num_counters] = {0};
  starpu_data_handle_t handles[num_counters];
  int wrong = 0;
  if (starpu_init(NULL) != 0) return 1;
  for (int i = 0; i < num_counters; ++i)
    starpu_variable_data_register(&handles[i], STARPU_MAIN_RAM, (uintptr_t)&counters[i], sizeof(int));
  for (int i = 0; i < num_tasks; ++i)
    starpu_task_insert(&codelet, STARPU_RW, handles[i % num_counters], STARPU_PRIORITY, i % 3, 0);
  starpu_task_wait_for_all();
  for (int i = 0; i < num_counters; ++i) {
    starpu_data_unregister(handles[i]);
    wrong += counters[i] != num_tasks / num_counters;
  }
  printf("%s\n", starpu_sched_get_sched_policy()->policy_name);
  starpu_shutdown();
  return wrong != 0;
}
