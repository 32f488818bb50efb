// The program: reads the command line, runs one command, turns its Status into messages and an exit code.
#include "frontend/cli/cli.h"
#include <signal.h>
#include <string.h>

static Status run(const Options *o) {
    switch (o->command) {
    case 'c':
        return cmd_compile(o);
    case 't':
        return cmd_train(o);
    case 'p':
        return cmd_probe(o);
    case 'b':
        return cmd_bench(o);
    case 'e':
        return cmd_estimate(o);
    case 's':
        return cmd_shapes(o);
    default:
        return cmd_doctor(o);
    }
}

int main(int argc, char **argv) {
    static Options options;
    signal(SIGXFSZ, SIG_IGN); // a file size limit is an error of the write, as a full disk is
    Status status = options_parse(argc, argv, &options);
    if (!status.code && (options.help || !options.command))
        options_help(stdout, options.command_name);
    else if (!status.code)
        status = run(&options);
    if ((fflush(stdout) || ferror(stdout)) && !status.code)
        status = status_make(EXIT_WORK, "cannot write to standard output");
    if (status.code) {
        if (status.text[0])
            fprintf(stderr, "depthbench: %s%s\n", status.code > 128 ? "" : "error: ", status.text);
        if (options.json)
            emit_json(json_pack("{s:s,s:i,s:s}", "event", "error", "code", status.code, "message",
                                json_text(status.text[0] ? status.text : script_messages)));
    }
    return status.code;
}
