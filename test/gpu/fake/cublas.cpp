/// A cuBLAS whose handles can be made and whose products fail, for test/gpu/device_loss_test.cpp.
extern "C" {
int cublasCreate_v2(void** handle) {
  static int any = 0;
  *handle = &any;
  return 0;
}
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
int cublasSetWorkspace_v2(void*, void*, unsigned long) { return 0; }
int cublasSetMathMode(void*, int) { return 0; }
const char* cublasGetStatusString(int) { return "the made-up cuBLAS cannot multiply"; }
int cublasSgemm_v2(...) { return 13; } // CUBLAS_STATUS_EXECUTION_FAILED
int cublasSgemmStridedBatched(...) { return 13; }
int cublasGemmStridedBatchedEx(...) { return 13; }
}
