@echo off
rem kubectl calls this for `kubectl klusterlet <TAB>`. It has to lie in a directory of PATH, under this name.
kubectl-klusterlet.exe __complete %*
