package main

import (
	"context"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	jobsetcontrollers "sigs.k8s.io/jobset/pkg/controllers"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwscontrollers "sigs.k8s.io/lws/pkg/controllers"
)

// runWorkloadControllers runs the controllers of JobSet and LeaderWorkerSet as they are, in one manager. Their webhooks
// are left out: crds/ fills in the same defaults, and labels the pods of a LeaderWorkerSet, without a certificate.
func runWorkloadControllers() int {
	flags := pflag.NewFlagSet("workload-controllers", pflag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "of a user who may do all that they do")
	address := flags.String("health-probe-bind-address", "", "where /healthz answers")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	ctrl.SetLogger(klog.Background())
	if err := startWorkloadControllers(ctrl.SetupSignalHandler(), *kubeconfig, *address); err != nil {
		klog.ErrorS(err, "the workload controllers have stopped")
		return 1
	}
	return 0
}

func startWorkloadControllers(ctx context.Context, kubeconfig, address string) error {
	connection, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	connection.QPS, connection.Burst = 500, 1000
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, jobset.AddToScheme, lws.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	manager, err := ctrl.NewManager(connection, ctrl.Options{
		Scheme:                 scheme,
		HealthProbeBindAddress: address,
		Metrics:                server.Options{BindAddress: "0"},
		Controller:             config.Controller{SkipNameValidation: ptr.To(true)}, // both have one named pod
	})
	if err != nil {
		return err
	}
	client, recorder, index := manager.GetClient(), manager.GetEventRecorderFor, manager.GetFieldIndexer()
	for _, set := range []func() error{
		func() error { return manager.AddHealthzCheck("healthz", healthz.Ping) },
		func() error { return jobsetcontrollers.SetupJobSetIndexes(ctx, index) },
		func() error { return jobsetcontrollers.SetupPodIndexes(ctx, index) },
		func() error {
			return jobsetcontrollers.NewJobSetReconciler(client, scheme, recorder("jobset")).SetupWithManager(manager)
		},
		func() error {
			return jobsetcontrollers.NewPodReconciler(client, scheme, recorder("jobset")).SetupWithManager(manager)
		},
		func() error { return lwscontrollers.SetupIndexes(index) },
		func() error {
			return lwscontrollers.NewLeaderWorkerSetReconciler(
				client, scheme, recorder("leaderworkerset")).SetupWithManager(manager)
		},
		func() error {
			return lwscontrollers.NewPodReconciler(
				client, scheme, recorder("leaderworkerset"), nil).SetupWithManager(manager)
		},
	} {
		if err := set(); err != nil {
			return err
		}
	}
	return manager.Start(ctx)
}
