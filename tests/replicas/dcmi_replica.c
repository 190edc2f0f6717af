/* DCMI's functions as the DCMI API Reference declares them, for two cards of made-up NPUs: one chip on card 2, two on
   card 5. Environment: DCMI_LACKS names functions that fail, DCMI_RUBBISH makes utilization, power and heat nonsense,
   DCMI_PIDS lists processes on every chip, DCMI_NAME is the chips' name ("910B2"), DCMI_CARD_POWER what a card's
   microcontroller says, in 0.1 W, DCMI_ONE_DIE leaves the second chip of card 5 out, whose logical id is then unset. */
#include <stdlib.h>
#include <string.h>

#define NAME_LENGTH 32

struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};
struct dcmi_get_memory_info_stru {
    unsigned long long memory_size;
    unsigned long long memory_available;
    unsigned int freq;
    unsigned long hugepagesize;
    unsigned long hugepages_total;
    unsigned long hugepages_free;
    unsigned int utiliza;
    unsigned char reserve[60];
};
struct dcmi_chip_info_v2 {
    unsigned char chip_type[NAME_LENGTH];
    unsigned char chip_name[NAME_LENGTH];
    unsigned char chip_ver[NAME_LENGTH];
    unsigned int aicore_cnt;
    unsigned char npu_name[NAME_LENGTH];
};
struct dcmi_die_id { unsigned int soc_die[5]; };
struct dcmi_proc_mem_info { int proc_id; unsigned long proc_mem_usage; };
enum dcmi_die_type { NDIE, VDIE };
enum dcmi_freq_type { DCMI_FREQ_HBM = 6, DCMI_FREQ_AICORE_CURRENT_ = 7, DCMI_FREQ_AICORE_MAX = 9 };
struct dcmi_ecc_info {
    int enable_flag;
    unsigned int single_bit_error_cnt;
    unsigned int double_bit_error_cnt;
    unsigned int total_single_bit_error_cnt;
    unsigned int total_double_bit_error_cnt;
    unsigned int single_bit_isolated_pages_cnt;
    unsigned int double_bit_isolated_pages_cnt;
};

static int fails(const char *function) {
    const char *lacks = getenv("DCMI_LACKS");
    return lacks && strstr(lacks, function) ? -8255 : 0;
}

int dcmi_init(void) { return fails("dcmi_init"); }

int dcmi_get_card_list(int *card_num, int *card_list, int list_len) {
    if (list_len < 2) return -8001;
    *card_num = 2; card_list[0] = 2; card_list[1] = 5;
    return fails("dcmi_get_card_list");
}

int dcmi_get_device_id_in_card(int card_id, int *device_id_max, int *mcu_id, int *cpu_id) {
    *device_id_max = card_id == 2 ? 1 : 2; *mcu_id = *device_id_max; *cpu_id = -1;
    return 0;
}

int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id) {
    *device_logic_id = card_id == 2 ? 0 : 1 + device_id;
    if (getenv("DCMI_ONE_DIE") && card_id == 5 && device_id == 1) *device_logic_id = 0;
    return 0;
}

int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *info) {
    info->memory_size = 65536; info->freq = 1600; info->memory_usage = 1000 * card_id + device_id;
    info->temp = 41; info->bandwith_util_rate = 77;
    return fails("dcmi_get_device_hbm_info");
}

int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *rate) {
    if (input_type != 2) return -8001;
    *rate = getenv("DCMI_RUBBISH") ? 4294967295u : (unsigned int)(10 * card_id + device_id);
    return fails("dcmi_get_device_utilization_rate");
}

int dcmi_get_device_power_info(int card_id, int device_id, int *power) {
    *power = getenv("DCMI_RUBBISH") ? -1 : 1000 * card_id + 5 * device_id;
    return fails("dcmi_get_device_power_info");
}

int dcmi_get_device_temperature(int card_id, int device_id, int *temperature) {
    *temperature = getenv("DCMI_RUBBISH") ? 0x7ffd : 40 + card_id + device_id;
    return fails("dcmi_get_device_temperature");
}

int dcmi_get_device_frequency(int card_id, int device_id, enum dcmi_freq_type input_type, unsigned int *frequency) {
    if (input_type != DCMI_FREQ_AICORE_CURRENT_ && input_type != DCMI_FREQ_AICORE_MAX) return -8001;
    *frequency = input_type == DCMI_FREQ_AICORE_MAX ? 1850 : (unsigned int)(1800 - 10 * card_id - device_id);
    return fails("dcmi_get_device_frequency");
}

int dcmi_get_device_ecc_info(int card_id, int device_id, int input_type, struct dcmi_ecc_info *info) {
    (void)device_id;
    if (input_type != 2) return -8001;
    memset(info, 0, sizeof *info);
    info->enable_flag = card_id == 2; info->total_single_bit_error_cnt = 3;
    return fails("dcmi_get_device_ecc_info");
}

int dcmi_mcu_get_power_info(int card_id, int *power) {
    const char *told = getenv("DCMI_CARD_POWER");
    (void)card_id;
    if (told) *power = atoi(told);
    return told ? 0 : -8255;
}

int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *info) {
    memset(info, 0, sizeof *info);
    info->memory_size = 44280; info->memory_available = 44280 - (1000 * card_id + device_id); info->utiliza = 4;
    return fails("dcmi_get_device_memory_info_v3");
}

int dcmi_get_device_chip_info_v2(int card_id, int device_id, struct dcmi_chip_info_v2 *info) {
    memset(info, 0, sizeof *info);
    strcpy((char *)info->chip_type, "Ascend"); strcpy((char *)info->chip_name, getenv("DCMI_NAME") ? getenv("DCMI_NAME") : "910B2");
    return fails("dcmi_get_device_chip_info_v2");
}

int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type input_type, struct dcmi_die_id *die) {
    if (input_type != VDIE) return -8001;
    for (int i = 0; i < 5; i++) die->soc_die[i] = (unsigned int)(card_id * 256 + device_id * 16 + i);
    return fails("dcmi_get_device_die_v2");
}

int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *processes, int *number) {
    const char *pids = getenv("DCMI_PIDS");
    *number = 0;
    while (pids && *pids) {
        char *rest;
        processes[*number].proc_id = (int)strtol(pids, &rest, 10);
        processes[(*number)++].proc_mem_usage = 1u << 30;
        pids = *rest ? rest + 1 : rest;
    }
    return fails("dcmi_get_device_resource_info");
}
