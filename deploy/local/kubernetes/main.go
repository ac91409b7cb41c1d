// kubestack puts a whole Kubernetes control plane into one executable: etcd, the API server, the controller manager,
// the scheduler, kubectl, and KWOK, which plays the kubelets. One executable links the shared Kubernetes packages once,
// so it builds and loads in a fraction of the time and space that six would take.
//
// The program to run is chosen by the name it is called under (a symlink named kubectl is kubectl), else by its first
// argument.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs name time zones, and a minimal machine has no zone files

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	kwoksignals "sigs.k8s.io/kwok/pkg/utils/signals"
)

var programs = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 func() int { return cli.Run(kubectl.NewDefaultKubectlCommand()) },
	"kwok":                    runKwok,
	"workload-controllers":    runWorkloadControllers,
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

// runKwok does what KWOK's own main does, with one addition: it first replaces the global flag set. Linking
// component-base defines a "version" flag there that isn't a bool; cobra would merge it and KWOK would refuse to start.
func runKwok() int {
	pflag.CommandLine = pflag.NewFlagSet("kwok", pflag.ExitOnError)
	global := pflag.NewFlagSet("global", pflag.ContinueOnError)
	global.ParseErrorsAllowlist.UnknownFlags = true
	global.Usage = func() {}

	ctx, logger := kwoklog.InitFlags(kwoksignals.SetupSignalContext(), global)
	ctx, err := kwokconfig.InitFlags(ctx, global)
	if err != nil {
		logger.Error("cannot read the configuration", "err", err)
		return 1
	}
	var command *cobra.Command = kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(global)
	if err := command.ExecuteContext(ctx); err != nil {
		logger.Error("kwok failed", "err", err)
		return 1
	}
	return 0
}

func main() {
	run, found := programs[filepath.Base(os.Args[0])]
	if !found && len(os.Args) > 1 {
		if run, found = programs[os.Args[1]]; found {
			os.Args = os.Args[1:]
		}
	}
	if !found {
		names := slices.Sorted(maps.Keys(programs))
		fmt.Fprintln(os.Stderr, "usage: kubestack "+strings.Join(names, "|")+" [ARGUMENTS]")
		os.Exit(2)
	}
	os.Exit(run())
}
