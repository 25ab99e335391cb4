/*
 * Lets a statically linked agent resolve names by /etc/hosts and DNS only, whatever nsswitch.conf says.
 *
 * Other modules are libraries of the host. glibc would load them into the agent, with the host's libc.
 * Of another version than ours, that crashes the agent: seen with `hosts: myhostname files`.
 */
#include <nss.h>
#include <stddef.h>

static const char *const databases[][2] = {
	{ "hosts", "files dns" },
	{ "group", "files" },
	{ "networks", "files" },
	{ "passwd", "files" },
	{ "protocols", "files" },
	{ "services", "files" },
};

__attribute__((constructor)) static void use_built_in_modules(void)
{
	for (size_t i = 0; i < sizeof databases / sizeof *databases; i++)
		__nss_configure_lookup(databases[i][0], databases[i][1]);
}
