@echo off
rem kubectl calls this for `kubectl selfhost <TAB>`. It has to lie in a directory of PATH, under this name.
kubectl-selfhost.exe __complete %*
